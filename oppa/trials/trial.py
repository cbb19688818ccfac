"""Run one trial: start it, monitor it, end it, and return its result."""

import contextlib
import dataclasses
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from oppa.errors import MeasurementError
from oppa.private_files import close_to_others
from oppa.problem.training import FEWEST_STEPS, Limits
from oppa.problem.trial_values import CACHES
from oppa.trials import logs, output, trial_folder
from oppa.trials.freezes import FreezeDetector
from oppa.trials.launcher import Exit, Launcher
from oppa.trials.monitor import HANG_S, StopRule, TrialMonitor, writable
from oppa.trials.throughput import ThroughputEstimate, estimate, settled
from oppa.trials.trial_folder import Measurement, Outcome, TrialSpec
from oppa.trials.verdict import TrialVerdict, kernel_oom_kills, verdict

POLL_S = 0.015


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Holds the result of a trial."""

    outcome: Outcome
    cause: str = ""
    rank: int | None = None
    """The first rank that failed."""
    traceback: str = ""
    step_times_s: tuple[float, ...] = ()
    """Seconds of every step, the first (warm-up) included."""
    losses: tuple[float, ...] = ()
    estimate: ThroughputEstimate | None = None
    """Throughput by the reported steps, however the trial ended; None with fewer than two steps after the first."""
    memory_bytes: int | None = None
    seconds: float
    """Seconds from the start until no process of the trial was left; waiting for the devices does not count, nor does a freeze."""
    setup_s: float | None = None
    """Seconds from the start to the beginning of the first step, to within a poll (15 ms); None if no step was seen."""

    @property
    def steps(self) -> int:
        """Return the number of steps reported."""
        return len(self.step_times_s)


def run_trial(
    launcher: Launcher,
    folder: Path,
    spec: TrialSpec,
    *,
    limits: Limits,
    stop_rule: StopRule | None = None,
    on_step: Callable[[Measurement], None] = lambda _: None,
    on_tick: Callable[[], None] = lambda: None,
    on_start: Callable[[], None] = lambda: None,
    hang_s: float = HANG_S,
    prepared: bool = False,
) -> TrialResult:
    """Run a trial in `folder` to its end once no other trial uses the devices; no process of it is left running.

    Args:
        stop_rule: Called after new steps. Once it returns an outcome, the trial stops at the next step boundary, with that outcome.
        on_step: Called with each measurement when it is read.
        on_tick: Called every few milliseconds. An exception that it raises ends the trial and is passed on.
        on_start: Called once the devices are held, before the processes start.
        hang_s: The shortest silence after a step that can be a hang, in seconds.
        prepared: The folder is prepared already, and the launcher may have started processes in it.

    Raises:
        StudyError: the folder, or the lock on the devices, cannot be written.
    """
    if not prepared:
        prepare(folder, spec)
    with launcher.devices(spec, on_tick) if limits.device_lock else contextlib.nullcontext():
        on_start()
        enough, settle, limit_s = enough_steps(limits), limits.settle, limits.trial_time_s
        monitor = TrialMonitor(
            folder, spec, limit_s=limit_s, enough=enough, settle=settle, hang_s=hang_s, stop_rule=stop_rule, on_step=on_step
        )
        result = _result(monitor, _run(launcher, folder, spec, monitor, limits=limits, on_tick=on_tick), settle)
    if result.outcome == "failed":
        _check_space(folder)
    return result


def enough_steps(limits: Limits) -> int:
    """Return the steps that measure a trial which ends before it has taken all of them."""
    return limits.settle + max(limits.q_min, FEWEST_STEPS)


def prepare(folder: Path, spec: TrialSpec) -> None:
    """Make the folder of a trial, without files of an earlier attempt at it, for the owner alone: programs may print secrets.

    The study's caches are the owner's alone, too: later trials load the code that programs compile into them.

    Raises:
        StudyError: it cannot be written.
    """
    with writable(folder):
        close_to_others(folder.parent.parent / CACHES)
        close_to_others(folder)
        _clear(folder)
        spec.write(folder)
        (folder / trial_folder.MEASUREMENTS).touch()  # a network file system may hide a file for seconds that was missing once


def _run(
    launcher: Launcher, folder: Path, spec: TrialSpec, monitor: TrialMonitor, *, limits: Limits, on_tick: Callable[[], None]
) -> TrialVerdict:
    """Start the trial, monitor it, end it, and return the verdict."""
    oom_kills, freezes = kernel_oom_kills(), FreezeDetector()
    try:
        running = launcher.start(folder, spec)
    except OSError as error:
        return TrialVerdict(outcome="failed", cause=f"launch failure: {error}", traceback=traceback.format_exc())
    try:
        while (exit := running.poll()) is None and monitor.must_end is None:
            monitor.leave_out(freezes.frozen_s())
            monitor.poll()
            monitor.check_time()
            on_tick()
            time.sleep(POLL_S)
    finally:
        running.end(limits.grace_s)
    monitor.poll()
    ended = exit or Exit()
    return _verdict(folder, spec, monitor, ended, limits=limits, kernel_oom=ended.kernel_oom or kernel_oom_kills() > oom_kills)


def _verdict(folder: Path, spec: TrialSpec, monitor: TrialMonitor, exit: Exit, *, limits: Limits, kernel_oom: bool) -> TrialVerdict:
    try:
        report = trial_folder.read_report(folder)
    except MeasurementError as error:
        return TrialVerdict(outcome="failed", cause=error.message)
    crashed = exit.first_abnormal is not None or bool(exit.failure)
    ended = verdict(
        exit,
        report,
        monitor.must_end,
        steps=len(monitor.measurements),
        wanted=spec.steps,
        enough=enough_steps(limits),
        stopped_as=monitor.stopped_as,
        kernel_oom=kernel_oom,
        last_words=logs.last_words(folder / logs.STDERR),
        root=output.failure(folder) if crashed else None,
    )
    if spec.steps and limits.settle and ended.outcome == "completed" and _estimate(monitor, limits.settle) is None:
        cause = f"`settle = {limits.settle}` leaves too few of {len(monitor.measurements)} steps to measure"
        return TrialVerdict(outcome="failed", cause=cause)
    if spec.command is None:
        return ended
    if spec.command.steps is None and monitor.measurements:
        output.tell_format(folder, spec.study, spec.command)
    silent = not monitor.measurements and report is None and not crashed
    return output.with_output(ended, folder, spec.command, silent=silent, limit_s=limits.trial_time_s)


def _result(monitor: TrialMonitor, ended: TrialVerdict, settle: int) -> TrialResult:
    memory = [measurement.memory_bytes for measurement in monitor.measurements if measurement.memory_bytes is not None]
    return TrialResult(
        **dataclasses.asdict(ended),
        step_times_s=monitor.step_times_s,
        losses=tuple(measurement.loss for measurement in monitor.measurements if measurement.loss is not None),
        estimate=_estimate(monitor, settle),
        memory_bytes=max(memory, default=None),
        seconds=monitor.seconds,
        setup_s=monitor.setup_s,
    )


def _estimate(monitor: TrialMonitor, settle: int) -> ThroughputEstimate | None:
    """Return the throughput by reports, or by steps if reports are too few; None if steps are, too."""
    enough = (times for times in (monitor.report_times_s, monitor.step_times_s) if len(times) > settle + 2)
    return next((estimate(settled(times, settle)) for times in enough), None)


def _check_space(folder: Path) -> None:
    """Raise StudyError if the disk is full, because a full disk fails every trial and lets none report why."""
    if not folder.is_dir():
        return  # the trial has removed it
    probe = folder / ".probe"
    with writable(folder):
        try:
            probe.write_bytes(bytes(16 << 10))
        finally:
            probe.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Remove the files that an earlier, interrupted attempt at this trial left."""
    for name in (
        trial_folder.MEASUREMENTS,
        trial_folder.REPORT,
        trial_folder.STOP,
        trial_folder.LAST_STEP,
        trial_folder.OPENED,
        trial_folder.REPORTER,
        trial_folder.PAUSED,
        logs.STDOUT,
        logs.STDERR,
    ):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
