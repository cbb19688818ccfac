"""Define the records of a study: a trial that runs is a Lease, one that ended is a Trial."""

import dataclasses
import math

from oppa.problem.configuration import Configuration
from oppa.trials.trial_folder import Outcome

SEARCH, BASELINE, VERIFICATION, DRIFT = "search", "baseline", "verification", "drift"
"""Purposes of a trial: find the fastest configuration, find a default that fits in memory, compare a few configurations, or detect a drift.
The incumbent's repeats show whether the machine has become slower or faster."""
MEASURED: tuple[Outcome, ...] = ("completed", "terminated_early")
"""Outcomes whose throughput is valid."""
LEASE_S = 60.0
"""Seconds after the last renewal of a lease at which its tuner loses the trial."""
QUANTILE = 1.645
"""Standard deviations on either side of the mean that hold 90% of a normal distribution."""
EVEN = 0.5
"""Probability from which on a configuration is predicted to fit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Holds the designer's prediction for a trial before it ran."""

    steps_per_s: float
    log_stddev: float
    """Standard deviation of the logarithm of a trial's throughput around `steps_per_s`."""
    memory_bytes: int | None = None
    """Peak memory as programs report it. Devices may need more."""
    memory_log_stddev: float | None = None
    probability_fits: float | None = None
    """Probability that the device has what the configuration needs; None if memory is not predicted, and in old studies."""

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 90% interval of the throughput, in steps per second."""
        factor = math.exp(QUANTILE * self.log_stddev)
        return self.steps_per_s / factor, self.steps_per_s * factor

    @property
    def memory_interval(self) -> tuple[float, float] | None:
        """Return the 90% interval of the memory, in bytes; None if memory is not predicted."""
        if self.memory_bytes is None or self.memory_log_stddev is None:
            return None
        factor = math.exp(QUANTILE * self.memory_log_stddev)
        return self.memory_bytes / factor, self.memory_bytes * factor

    def fits(self, usable_bytes: float) -> bool:
        """Return whether the configuration is predicted to fit: more probably than not, or if no memory is predicted."""
        if self.probability_fits is None:
            return (self.memory_bytes or 0) <= usable_bytes
        return self.probability_fits >= EVEN

    def covers(self, steps_per_s: float) -> bool:
        """Return whether a measured throughput lies in the predicted 90% interval."""
        low, high = self.interval
        return low <= steps_per_s <= high


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Grants one tuner the right to run one trial, until it expires. `token` invalidates the lease of a tuner that was presumed dead."""

    trial: int
    configuration: Configuration
    purpose: str
    pairing: str | None = None
    token: int
    granted_s: float | None = None
    """Seconds that the study's budget grants the trial; None without a budget."""

    @property
    def folder_name(self) -> str:
        """Return the name of the trial's folder below `trials/`."""
        return _folder_name(self.trial, self.configuration)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldTime:
    """States the seconds for which the tuners of a study hold devices, at one moment, as one of them sees it.

    A holder is a tuner whose launcher holds its hosts between trials. It holds them until the last running trial has ended.
    """

    committed_s: float
    """Seconds that are spent, granted to trials that run, or reserved for holders until these trials have ended."""
    until_s: float = 0.0
    """Seconds until the last of these trials has ended at the latest."""
    holders: int = 0
    """Number of holders, this tuner included if it is one."""
    is_holder: bool = False

    def affordable_s(self, left_s: float) -> float:
        """Return the longest trial of this tuner whose cost is at most `left_s`.

        Beyond `until_s`, a trial makes every holder wait for it. Until then, a holder waits in any case, and its own trial is free.
        """
        free_s = self.until_s if self.is_holder else min(left_s, self.until_s)
        paying = self.holders if self.is_holder else self.holders + 1
        rest_s = left_s if self.is_holder else left_s - free_s
        return free_s + rest_s / paying if left_s >= 0 else left_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudget:
    """States the seconds in which a study may hold its devices, and the share of them that a trial requests."""

    total_s: float
    """Seconds of all trials of the study together, those of other tuners included."""
    reserved_s: float
    """Seconds that are kept for later trials."""
    least_s: float
    """Seconds without which the trial is not begun."""
    most_s: float
    """Seconds that are enough for the trial."""

    def granted_s(self, held: HeldTime) -> float | None:
        """Return the seconds that the trial gets, given those that are spent, granted or reserved; None if they are too few."""
        left_s = held.affordable_s(self.total_s - self.reserved_s - held.committed_s)
        return None if left_s < self.least_s else min(left_s, self.most_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Describes a trial that ended. Values that it did not measure are None."""

    id: int
    configuration: Configuration
    purpose: str
    pairing: str | None
    """Id of the contenders that a verification trial compares; their trials ran in turn. None for other trials."""
    outcome: Outcome
    cause: str
    rank: int | None
    traceback: str
    step_times_s: tuple[float, ...]
    steps_per_s: float | None
    variance: float | None
    """Variance of `steps_per_s`, in (steps per second)^2."""
    memory_bytes: int | None
    """Peak memory, maximum over ranks."""
    prediction: Prediction | None
    seconds: float
    setup_s: float | None
    started_at: float
    hosts: tuple[str, ...] = ()
    """Names of the hosts that its ranks ran on; empty if they are not known."""

    @property
    def folder_name(self) -> str:
        """Return the name of the trial's folder below `trials/`."""
        return _folder_name(self.id, self.configuration)

    @property
    def stddev(self) -> float | None:
        """Return the standard deviation of `steps_per_s`."""
        return None if self.variance is None else math.sqrt(self.variance)

    @property
    def counts(self) -> bool:
        """Return whether the trial counts for its configuration: it was not interrupted."""
        return self.outcome != "interrupted"

    @property
    def feasible(self) -> bool:
        """Return whether the trial ran to its end within its memory, and was measured."""
        return self.outcome == "completed" and self.steps_per_s is not None


def _folder_name(number: int, configuration: Configuration) -> str:
    return f"{number:04d}_{configuration.id}"
