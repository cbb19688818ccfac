"""The records of a study: a trial that runs is a Lease, one that ended is a Trial."""

import dataclasses
import math

from oppa.problem.configuration import Configuration
from oppa.trials.wire import Outcome

SEARCH, VERIFICATION = "search", "verification"
MEASURED: tuple[Outcome, ...] = ("completed", "terminated_early")
"""Outcomes whose throughput means something."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the designer believed of a configuration before it ran."""

    steps_per_s: float
    log_stddev: float
    """Standard deviation of the logarithm of the throughput."""


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
        return f"{self.trial:04d}_{self.configuration.id}"


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
