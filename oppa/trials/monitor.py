"""Monitor a running trial from outside: its steps, its silences and its time."""

import contextlib
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.errors import MeasurementError, StudyError
from oppa.regular_file import parse_json
from oppa.trials import trial_folder, untrusted_file
from oppa.trials.trial_folder import Measurement, Outcome, TrialSpec
from oppa.trials.verdict import FailureSign, TrialVerdict
from oppa.units import format_seconds

HANG = "hang"
"""Beginning of the cause of a trial that stopped taking steps."""
HANG_S = 10.0
HANG_STEPS = 20
"""A trial hangs if it reports no step for `HANG_S` seconds, nor for `HANG_STEPS` times its median step time, nor for `SILENT` reports."""
PAUSE_LOOKS = 10
"""A silent trial is asked this often in `HANG_S` whether it pauses, so that steps without silence cost no read."""
ENDING = 6
"""Factor of `HANG_S` for a program that has taken its steps: it closes its process groups, and frees its devices."""
SILENT = 3
"""Longest silence at the time limit of a trial that still takes steps, in reports of its longest steps."""
RECENT = 1000
"""Most measurements that are kept of a trial without a number of steps, as the attempt of a run is: it takes millions."""
FLOOD = 1000
"""Reported steps per step of the trial, beyond which a program does not report steps but fills memory."""

StopRule = Callable[[Sequence[float], float], Outcome | None]
"""A function of the seconds of a step in each report so far, the first included, and of the seconds before the first step. It returns the
outcome of a trial that needs no further step."""


class TrialMonitor:
    """Monitors a trial from its start: forwards its measurements, stops it early, and detects when it must be ended.

    Args:
        limit_s: Seconds after which the trial is ended.
        enough: Steps that measure the trial, if it is ended at its limit.
        settle: First steps that are not measured.
        hang_s: Shortest silence that can be a hang, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        spec: TrialSpec,
        *,
        limit_s: float,
        hang_s: float,
        enough: float = math.inf,
        settle: int = 0,
        stop_rule: StopRule | None,
        on_step: Callable[[Measurement], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._wanted = spec.steps
        self._limit_s = limit_s
        self._enough, self._settle = enough, settle
        self._hang_s = hang_s
        self._stop_rule = stop_rule
        self._on_step = on_step
        self._clock = clock
        self._reader = trial_folder.MeasurementReader(folder)
        self._started_at = self._last_step_at = clock()
        self.measurements: deque[Measurement] = deque(maxlen=None if spec.steps else RECENT)
        self._together = self._most_together = 1  # steps in the newest report, and in the largest one
        steps = spec.command.steps if spec.command else None
        self._states_seconds = steps is None or steps.objective.is_throughput
        self._begun_s, self._paces_s = 0.0, deque[float](maxlen=RECENT)  # seconds until the first report, and of each step after it
        self.setup_s: float | None = None
        self.stopped_as: Outcome | None = None
        """Outcome of the trial once oppa has requested the program to stop; None before that."""
        self.must_end: FailureSign | None = None
        """Reason for which oppa must end the trial, with its time; None while the trial may run."""

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Return the seconds of every step so far, or of the last `RECENT` steps of a run."""
        return tuple(measurement.step_time_s for measurement in self.measurements)

    @property
    def report_times_s(self) -> tuple[float, ...]:
        """Return the seconds of a step in every report so far: steps that are reported together are one observation, of their mean.

        The first `settle` steps count one by one, so that as many values as steps are left out.
        """
        return tuple(each.step_time_s for place, each in enumerate(self.measurements) if place < self._settle or not each.averaged)

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._started_at

    def poll(self) -> None:
        """Read the steps reported since the last call, and apply the stop rule if there are any."""
        new: list[Measurement] = []
        try:
            new.extend(self._reader.new())  # with a bad line, it has those before
        except MeasurementError as error:
            self._end("failed", error.message)
        if new:
            self._clock_steps(new)
        for measurement in new:
            self.measurements.append(measurement)
            self._together = self._together + 1 if measurement.averaged else 1
            self._most_together = max(self._most_together, self._together)
            self._on_step(measurement)
        if self._wanted and len(self.measurements) > FLOOD * self._wanted:
            self._end("failed", f"reported over {FLOOD * self._wanted} steps of a trial of {self._wanted}")
        elif new:
            self._apply_stop_rule()

    def leave_out(self, frozen_s: float) -> None:
        """Leave out seconds in which the trial was frozen: they are neither silence nor part of its time."""
        self._started_at += frozen_s
        self._last_step_at += frozen_s

    def check_time(self) -> None:
        """Detect that the trial exceeds its time limit, or hangs."""
        silence_s = self._clock() - self._last_step_at
        if self.seconds > self._limit_s and self._is_measured(silence_s):
            self._end("completed", "")
        elif self.seconds > self._limit_s:
            self._end("timed_out", f"took longer than its limit of {format_seconds(self._limit_s)}")
        elif silence_s > self._hang_s / PAUSE_LOOKS and pause_of(self._folder) is not None:
            self._last_step_at = self._clock()
        elif silence_s > self._hang_s and self.measurements:
            self._check_silence(silence_s)

    def _clock_steps(self, new: Sequence[Measurement]) -> None:
        """Time new steps by the clock: an objective takes the place of a step's seconds, and so does the time of a single token."""
        silence_s, self._last_step_at = self._clock() - self._last_step_at, self._clock()
        if self.setup_s is None:
            stated_s = sum(each.step_time_s for each in new) if self._states_seconds else 0.0
            self._begun_s, self.setup_s = silence_s, max(0.0, self.seconds - stated_s)
        else:
            self._paces_s.extend([silence_s / len(new)] * len(new))
            self._most_together = max(self._most_together, len(new))

    def _step_s(self, typical: Callable[[Sequence[float]], float]) -> float:
        """Return the typical seconds of a step, as reported or by the clock, whichever are more."""
        known = (self.step_times_s if self._states_seconds else (), self._paces_s)
        return max((typical(each) for each in known if each), default=0.0)

    def _is_measured(self, silence_s: float) -> bool:
        """Return True if a trial at its time limit has taken enough steps, and still takes them: one that hangs has no throughput."""
        return len(self.measurements) >= self._enough and silence_s <= SILENT * self._most_together * self._step_s(max)

    def _check_silence(self, silence_s: float) -> None:
        """End a trial that has been silent for `hang_s`, unless its steps are long or it has taken them all.

        Before a second report, a step may take as long as the first report did from the start.
        """
        usual_s = self._step_s(statistics.median)
        shortest_s = max(self._hang_s * (ENDING if self._has_taken_its_steps() else 1), 0.0 if self._paces_s else self._begun_s)
        if silence_s > max(shortest_s, HANG_STEPS * usual_s, SILENT * self._most_together * usual_s):
            last = f"step {self.measurements[-1].step}; a step takes {format_seconds(usual_s)}"
            self._end("timed_out", f"{HANG}: no step for {format_seconds(silence_s)} after {last}")

    def _has_taken_its_steps(self) -> bool:
        """Return True if no further step is due: all were reported, or the program states that it has ended."""
        return 0 < self._wanted <= len(self.measurements) or os.path.lexists(self._folder / trial_folder.REPORT)

    def _end(self, outcome: Outcome, cause: str) -> None:
        """Record that the trial must end; the first reason is kept."""
        self.must_end = self.must_end or FailureSign(time=time.time(), verdict=TrialVerdict(outcome=outcome, cause=cause))

    def _apply_stop_rule(self) -> None:
        if self._stop_rule is None or self.stopped_as or len(self.measurements) >= self._wanted:
            return
        if outcome := self._stop_rule(self.report_times_s, self.setup_s or 0.0):
            if not self._folder.is_dir():
                self._end("failed", "the trial removed its folder")
                return
            with writable(self._folder):
                (self._folder / trial_folder.STOP).touch()
            self.stopped_as = outcome


def pause_of(folder: Path) -> str | None:
    """Return what a program does instead of training, within the time that it states for that; None if it trains."""
    try:
        text = untrusted_file.read(folder / trial_folder.PAUSED, limit_bytes=trial_folder.LINE_BYTES)
        stated = {} if text is None else parse_json(text)
        return str(stated.get("label", "")) if time.time() < float(stated.get("until", 0)) else None
    except (MeasurementError, ValueError, TypeError, AttributeError, OverflowError):
        return None


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an OSError that is raised inside into a StudyError that names the folder."""
    try:
        yield
    except OSError as error:
        raise StudyError(f"`{folder}` cannot be written: {error.strerror}", hint="free some space, or name another folder") from error
