"""A program that states until when it evaluates or saves does not hang; no other text in that file ends the tuner."""

import dataclasses
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from oppa.errors import MeasurementError
from oppa.problem.command import LaunchCommand, StepFormat
from oppa.trials import trial_folder, untrusted_file
from oppa.trials.freezes import FreezeDetector
from oppa.trials.monitor import ENDING, HANG_S, RECENT, TrialMonitor
from oppa.trials.throughput import estimate
from oppa.trials.trial import _estimate
from tests.trials.conftest import script_spec

OTHERS = ("", "[", "[]", "1", "{}", '{"until": null}', '{"until": NaN}', '{"until": 1' + "0" * 400 + "}", "[" * 60_000, '{"until": 0}')


class Clock:
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def silent(folder: Path, clock: Clock, *, silence_s: float = 1.01 * HANG_S) -> TrialMonitor:
    """Return the monitor of a trial whose program has taken a step, and no other for `silence_s` seconds."""
    (folder / trial_folder.MEASUREMENTS).write_text('{"step": 0, "step_time_s": 1e-9, "memory_bytes": 1}\n')
    found = TrialMonitor(folder, script_spec(), limit_s=1e9, hang_s=HANG_S, stop_rule=None, on_step=lambda _: None, clock=clock)
    found.poll()
    clock.advance(silence_s)
    return found


def test_a_silent_program_hangs_unless_it_is_paused(tmp_path: Path) -> None:
    paused, clock = tmp_path / trial_folder.PAUSED, Clock()
    monitor = silent(tmp_path, clock)
    paused.write_text(json.dumps({"until": time.time() + 1e6}))
    monitor.check_time()
    assert monitor.must_end is None
    paused.unlink()
    monitor.check_time()
    assert monitor.must_end is None
    clock.advance(1.01 * HANG_S)
    monitor.check_time()
    assert monitor.must_end is not None


@pytest.mark.parametrize(("looks", "hangs"), [(1, False), (10, True)], ids=["frozen", "silent"])
def test_a_freeze_of_all_processes_is_no_silence_and_takes_no_time(looks: int, hangs: bool, tmp_path: Path) -> None:
    """The tuner looks many times a second, unless it is frozen itself."""
    clock = Clock()
    monitor, freezes = silent(tmp_path, clock, silence_s=0.0), FreezeDetector(clock)
    monitor.leave_out(freezes.frozen_s())
    for _ in range(looks):
        clock.advance(30.0 / looks)
        monitor.leave_out(freezes.frozen_s())
        monitor.check_time()
    assert (monitor.must_end is not None, monitor.seconds) == (hangs, 30.0 if hangs else 0.0)


def test_a_program_that_has_taken_its_steps_has_longer_to_end(tmp_path: Path) -> None:
    clock = Clock()
    monitor = silent(tmp_path, clock)
    (tmp_path / trial_folder.REPORT).write_text('{"outcome": "completed"}')
    monitor.check_time()
    assert monitor.must_end is None
    clock.advance(HANG_S * (ENDING - 1))
    monitor.check_time()
    assert monitor.must_end is not None and monitor.must_end.verdict.outcome == "timed_out"


@pytest.mark.parametrize(
    ("steps", "silence_s", "outcome"), [(5, 0.0, "completed"), (5, 2.9, "completed"), (5, 3.1, "timed_out"), (4, 0.0, "timed_out")]
)
def test_at_its_limit_a_trial_with_enough_steps_is_measured_unless_it_has_become_silent(
    steps: int, silence_s: float, outcome: str, tmp_path: Path
) -> None:
    clock = Clock()
    lines = (json.dumps({"step": step, "step_time_s": 1.0}) for step in range(steps))
    monitor = TrialMonitor(
        tmp_path, script_spec(), limit_s=100.0, enough=5, hang_s=HANG_S, stop_rule=None, on_step=lambda _: None, clock=clock
    )
    clock.advance(100.1 - silence_s)
    (tmp_path / trial_folder.MEASUREMENTS).write_text("".join(f"{line}\n" for line in lines))
    monitor.poll()
    clock.advance(silence_s)
    monitor.check_time()
    assert monitor.must_end is not None and monitor.must_end.verdict.outcome == outcome


def test_steps_that_are_reported_together_are_one_observation_and_their_silence_is_no_hang(tmp_path: Path) -> None:
    clock, seen = Clock(), list[tuple[float, ...]]()
    lines = ({"step": step, "step_time_s": 1.0 + step // 100, "averaged": step % 100 > 0} for step in range(200))
    monitor = TrialMonitor(
        tmp_path,
        dataclasses.replace(script_spec(), steps=1000),
        limit_s=1e9,
        hang_s=HANG_S,
        stop_rule=lambda times, start_s: seen.append(tuple(times)),
        on_step=lambda _: None,
        clock=clock,
    )
    (tmp_path / trial_folder.MEASUREMENTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monitor.poll()
    assert seen == [(1.0, 2.0)] and len(monitor.step_times_s) == 200
    for silence_s, hangs in ((440.0, False), (20.0, True)):  # three reports of 100 steps, of which each takes 1.5 s in the median
        clock.advance(silence_s)
        monitor.check_time()
        assert (monitor.must_end is not None) is hangs


@pytest.mark.parametrize(("stated", "better"), [(1e-5, ""), (300.0, "lower"), (1 / 300, "higher")], ids=["a token", "lower", "higher"])
def test_the_clock_times_steps_whose_numbers_are_no_seconds(stated: float, better: str, tmp_path: Path) -> None:
    clock, steps = Clock(), StepFormat(pattern="(?P<value>.*)", better=better)
    spec = dataclasses.replace(script_spec(), steps=30, command=LaunchCommand(argv=("train",), steps=steps))
    options = {"limit_s": 151.0, "enough": 7, "hang_s": HANG_S, "stop_rule": None, "on_step": lambda _: None}
    monitor = TrialMonitor(tmp_path, spec, clock=clock, **options)
    with (tmp_path / trial_folder.MEASUREMENTS).open("a") as lines:
        for step in range(7):
            for _ in range(2):
                clock.advance(10.1)
                monitor.check_time()
                assert monitor.must_end is None
            print(json.dumps({"step": step, "step_time_s": stated}), file=lines, flush=True)
            monitor.poll()
    assert monitor.setup_s == pytest.approx(20.2, abs=0.01)
    clock.advance(20.2)
    monitor.check_time()
    assert monitor.must_end is not None and monitor.must_end.verdict.outcome == "completed"


def test_an_objective_of_large_numbers_is_no_long_step(tmp_path: Path) -> None:
    clock, steps = Clock(), StepFormat(pattern="(?P<value>.*)", better="lower")
    spec = dataclasses.replace(script_spec(), steps=30, command=LaunchCommand(argv=("train",), steps=steps))
    monitor = TrialMonitor(tmp_path, spec, limit_s=1e9, hang_s=HANG_S, stop_rule=None, on_step=lambda _: None, clock=clock)
    with (tmp_path / trial_folder.MEASUREMENTS).open("a") as lines:
        for step in range(3):
            print(json.dumps({"step": step, "step_time_s": 300.0}), file=lines, flush=True)
            monitor.poll()
            clock.advance(0.1)
    clock.advance(HANG_S)
    monitor.check_time()
    assert monitor.must_end is not None and "no step for 10.1 s after step 2; a step takes 100 ms" in monitor.must_end.verdict.cause


@pytest.mark.parametrize("averaged", [True, False])
def test_the_start_of_a_trial_ends_where_the_first_of_the_steps_begins_that_are_reported_at_once(averaged, tmp_path: Path) -> None:
    clock = Clock()
    spec = dataclasses.replace(script_spec(), steps=1000)
    monitor = TrialMonitor(tmp_path, spec, limit_s=1e9, hang_s=HANG_S, stop_rule=None, on_step=lambda _: None, clock=clock)
    lines = ({"step": step, "step_time_s": 5.0, "averaged": averaged and step > 0} for step in range(10))
    (tmp_path / trial_folder.MEASUREMENTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    clock.advance(62.0)
    monitor.poll()
    assert monitor.setup_s == pytest.approx(12.0)


def test_steps_that_settle_are_counted_as_steps_where_a_line_states_several(tmp_path: Path) -> None:
    """The 15 steps end within the second line, which is left out; 18 lines of ten steps are 18 observations, not 180."""
    random, seen = np.random.default_rng(0), list[tuple[float, ...]]()
    means = random.lognormal(0, 0.1, 20)
    lines = ({"step": step, "step_time_s": means[step // 10], "averaged": step % 10 > 0} for step in range(200))
    options = {"limit_s": 1e9, "hang_s": HANG_S, "settle": 15, "on_step": lambda _: None}
    spec = dataclasses.replace(script_spec(), steps=1000)
    monitor = TrialMonitor(tmp_path, spec, stop_rule=lambda times, start_s: seen.append(tuple(times)), **options)
    (tmp_path / trial_folder.MEASUREMENTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monitor.poll()
    assert seen[-1][15:] == tuple(means[2:]) and _estimate(monitor, 15) == estimate(means[2:])


@pytest.mark.parametrize("text", OTHERS, ids=range(len(OTHERS)))
def test_any_other_text_is_no_pause(text: str, tmp_path: Path) -> None:
    monitor = silent(tmp_path, Clock())
    (tmp_path / trial_folder.PAUSED).write_text(text)
    monitor.check_time()
    assert monitor.must_end is not None


@pytest.mark.parametrize(("steps", "kept"), [(0, RECENT), (2 * RECENT, RECENT + 5)])
def test_only_the_newest_measurements_of_a_run_are_kept_and_all_of_a_trial(steps: int, kept: int, tmp_path: Path) -> None:
    lines = (json.dumps({"step": step, "step_time_s": 1.0}) for step in range(RECENT + 5))
    (tmp_path / trial_folder.MEASUREMENTS).write_text("".join(f"{line}\n" for line in lines))
    spec, seen = dataclasses.replace(script_spec(), steps=steps), list[int]()
    monitor = TrialMonitor(tmp_path, spec, limit_s=1e9, hang_s=HANG_S, stop_rule=None, on_step=lambda each: seen.append(each.step))
    monitor.poll()
    assert len(monitor.measurements) == kept and seen == list(range(RECENT + 5))


MEMORY = Path("/proc/self/mem")
"""A regular file whose first bytes no process can read: the kernel answers EIO, as a network file system does for a while."""


def test_a_read_error_that_stays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_file, "PATIENCE_S", 0.0)
    with pytest.raises(MeasurementError, match="`mem` cannot be read: Input/output error"):
        untrusted_file.read(MEMORY, limit_bytes=10)


def test_a_read_error_that_passes_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_file, "RETRY_S", 0.01)
    trial, restored = tmp_path / "trial", tmp_path / "restored"
    (restored / MEMORY.name).parent.mkdir()
    (restored / MEMORY.name).write_text("whole")
    trial.symlink_to(MEMORY.parent)
    (tmp_path / "new").symlink_to(restored)
    mends = threading.Timer(0.05, (tmp_path / "new").replace, [trial])
    mends.start()
    assert untrusted_file.read(trial / MEMORY.name, limit_bytes=10) == b"whole"
    mends.join()


def test_a_refusal_that_does_not_pass_is_not_tried_again() -> None:
    tries = list[int]()

    def refused() -> None:
        tries.append(1)
        Path("/proc/self/mem/x").touch()

    with pytest.raises(NotADirectoryError):
        untrusted_file.insist(refused)
    assert len(tries) == 1
