"""What is seen of a running trial from outside: its steps, its silence, its time."""

import math
import statistics
import time
from pathlib import Path

from oppa.errors import MeasurementError
from oppa.trials import wire
from oppa.trials.verdict import Verdict
from oppa.trials.wire import Measurement
from oppa.units import format_seconds

HANG_S = 10.0
HANG_STEPS = 20
"""No step for `HANG_S`, nor for as long as this many usual ones take, is a hang."""


class Watch:
    """Reads a trial's measurements from the moment it starts, and notices when it must be ended."""

    def __init__(self, folder: Path, *, limit_s: float, hang_s: float = HANG_S) -> None:
        self._reader = wire.MeasurementReader(folder)
        self._limit_s = limit_s
        self._hang_s = hang_s
        self._started_at = self._last_step_at = time.monotonic()
        self.measurements: list[Measurement] = []
        self.setup_s: float | None = None
        self.must_end: Verdict | None = None
        """Why the trial must be ended, once it must."""

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Of every step so far."""
        return tuple(measurement.step_time_s for measurement in self.measurements)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started_at

    def look(self) -> list[Measurement]:
        """The measurements since the last look."""
        try:
            new = self._reader.new()
        except MeasurementError as error:
            self.must_end = Verdict(outcome="failed", cause=error.message)
            return []
        if new:
            self._last_step_at = time.monotonic()
            if self.setup_s is None:
                self.setup_s = max(0.0, self.seconds - new[0].step_time_s)
        self.measurements += new
        return new

    def check_time(self) -> None:
        """Notice that the trial takes too long, or hangs."""
        silence_s = time.monotonic() - self._last_step_at
        usual_s = statistics.median(self.step_times_s) if self.measurements else math.inf
        if self.seconds > self._limit_s:
            self.must_end = Verdict(outcome="timed_out", cause=f"took longer than its limit of {format_seconds(self._limit_s)}")
        elif silence_s > max(self._hang_s, HANG_STEPS * usual_s):
            step = f"step {self.measurements[-1].step}, and a step takes {format_seconds(usual_s)}"
            self.must_end = Verdict(outcome="timed_out", cause=f"hang: nothing for {format_seconds(silence_s)} after {step}")
