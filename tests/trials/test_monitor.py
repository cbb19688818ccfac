"""A program that states until when it evaluates or saves does not hang; no other text in that file ends the tuner."""

import json
import time
from pathlib import Path

import pytest

from oppa.trials import trial_folder
from oppa.trials.monitor import ENDING, HANG_S, TrialMonitor
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


def silent(folder: Path, clock: Clock) -> TrialMonitor:
    """Return the monitor of a trial whose program has taken a step, and no other for longer than HANG_S."""
    (folder / trial_folder.MEASUREMENTS).write_text('{"step": 0, "step_time_s": 1e-9, "memory_bytes": 1}\n')
    found = TrialMonitor(folder, script_spec(), limit_s=1e9, hang_s=HANG_S, stop_rule=None, on_step=lambda _: None, clock=clock)
    found.poll()
    clock.advance(1.01 * HANG_S)
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


def test_a_program_that_has_taken_its_steps_has_longer_to_end(tmp_path: Path) -> None:
    clock = Clock()
    monitor = silent(tmp_path, clock)
    (tmp_path / trial_folder.REPORT).write_text('{"outcome": "completed"}')
    monitor.check_time()
    assert monitor.must_end is None
    clock.advance(HANG_S * (ENDING - 1))
    monitor.check_time()
    assert monitor.must_end is not None and monitor.must_end.verdict.outcome == "timed_out"


@pytest.mark.parametrize("text", OTHERS, ids=range(len(OTHERS)))
def test_any_other_text_is_no_pause(text: str, tmp_path: Path) -> None:
    monitor = silent(tmp_path, Clock())
    (tmp_path / trial_folder.PAUSED).write_text(text)
    monitor.check_time()
    assert monitor.must_end is not None
