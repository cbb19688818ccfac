"""The records of a study: a trial that runs is a Lease, one that ended is a Trial."""

import dataclasses
import math

from oppa.problem.configuration import Configuration
from oppa.trials.wire import Outcome

SEARCH, BASELINE, VERIFICATION = "search", "baseline", "verification"
"""What a trial is for: to find the fastest, to find the default that fits, to compare a few in turn."""
MEASURED: tuple[Outcome, ...] = ("completed", "terminated_early")
"""Outcomes whose throughput means something."""
QUANTILE = 1.645
"""Standard deviations on either side that hold 90% of a normal law."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the designer believed of a configuration before it ran."""

    steps_per_s: float
    log_stddev: float
    """Standard deviation of the logarithm of a trial's throughput around it."""
    memory_bytes: int | None = None
    memory_log_stddev: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """90% of the belief in the throughput lies within, steps per second."""
        factor = math.exp(QUANTILE * self.log_stddev)
        return self.steps_per_s / factor, self.steps_per_s * factor

    @property
    def memory_interval(self) -> tuple[float, float] | None:
        """90% of the belief in the memory lies within, bytes; None where nothing is believed of it."""
        if self.memory_bytes is None or self.memory_log_stddev is None:
            return None
        factor = math.exp(QUANTILE * self.memory_log_stddev)
        return self.memory_bytes / factor, self.memory_bytes * factor

    def covers(self, steps_per_s: float) -> bool:
        """Whether a measured throughput lies in the 90% interval that was predicted for it."""
        low, high = self.interval
        return low <= steps_per_s <= high


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one tuner to run one trial, until it expires; `token` fences off a tuner that was given up for dead."""

    trial: int
    configuration: Configuration
    purpose: str
    pairing: str | None = None
    token: int

    @property
    def folder_name(self) -> str:
        """The trial's folder below `trials/`."""
        return _folder_name(self.trial, self.configuration)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial that ended. What it never came to measure is None."""

    id: int
    configuration: Configuration
    purpose: str
    pairing: str | None
    """Verification trials of one pairing ran in turn, and are compared with one another."""
    outcome: Outcome
    cause: str
    rank: int | None
    traceback: str
    step_times_s: tuple[float, ...]
    steps_per_s: float | None
    variance: float | None
    """Of `steps_per_s`, in (steps per second)^2."""
    memory_bytes: int | None
    """Peak, maximum over ranks."""
    prediction: Prediction | None
    seconds: float
    setup_s: float | None
    started_at: float

    @property
    def folder_name(self) -> str:
        """The trial's folder below `trials/`."""
        return _folder_name(self.id, self.configuration)

    @property
    def stddev(self) -> float | None:
        """Standard deviation of `steps_per_s`."""
        return None if self.variance is None else math.sqrt(self.variance)

    @property
    def counts(self) -> bool:
        """It says something of its configuration: it was not broken off from outside."""
        return self.outcome != "interrupted"

    @property
    def feasible(self) -> bool:
        """It ran to its end within its memory, and was measured."""
        return self.outcome == "completed" and self.steps_per_s is not None


def _folder_name(number: int, configuration: Configuration) -> str:
    return f"{number:04d}_{configuration.id}"
