"""Compute the length of a training run from which a search pays for itself.

Notation:
    S    seconds for which the search holds the devices
    g    speed-up of the winner over the reference: the baseline, or the default
    T    seconds of the run in the reference configuration

    With the winner, the run takes T / g. The search pays if T - T / g > S, so it pays for runs longer than S / (1 - 1 / g).
"""

import dataclasses
import math
from typing import Any

from oppa.problem.cluster import Cluster
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.tuning.spending import Spending, cost, gpu_hours
from oppa.tuning.verification import Interval

REFERENCES = {"baseline": "the baseline", "default": "the default configuration"}
"""Names of the reference, and how they read in a sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Compares the cost of a search with the time that its winner saves; expected before the search, or measured after it."""

    cluster: Cluster
    limits: Limits
    search_s: Interval
    """Seconds for which the search holds the devices."""
    speed_up: Interval | None
    """Speed-up of the winner over the reference; None if it is unknown."""
    reference: str
    """Name of the reference, one of REFERENCES."""
    run_s: float | None = None
    """Seconds of the run in the reference configuration; None if the job does not state its length."""

    @property
    def pays_after_s(self) -> Interval | None:
        """Return the length of run from which the search pays, in seconds; infinity where the winner is not faster."""
        if (gain := self.speed_up) is None:
            return None
        cost_s = self.search_s
        return Interval(
            value=_break_even(cost_s.value, gain.value), low=_break_even(cost_s.low, gain.high), high=_break_even(cost_s.high, gain.low)
        )

    @property
    def net_s(self) -> Interval | None:
        """Return the seconds that the stated run saves, less those of the search; None if either is unknown."""
        if self.run_s is None or (gain := self.speed_up) is None:
            return None
        return Interval(
            value=self.run_s * (1 - 1 / gain.value) - self.search_s.value,
            low=self.run_s * (1 - 1 / gain.low) - self.search_s.high,
            high=self.run_s * (1 - 1 / gain.high) - self.search_s.low,
        )

    @property
    def pays(self) -> bool | None:
        """Return whether the search pays for the stated run; None if that is unknown."""
        return None if self.net_s is None else self.net_s.value > 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; null where a value is unknown, and where a run would never be long enough."""
        net, pays, gain = self.net_s, self.pays_after_s, self.speed_up
        net_hours = None if net is None else gpu_hours(self.cluster, net.value)
        return {
            "search_s": self.search_s.value,
            "search_interval_s": [self.search_s.low, self.search_s.high],
            "search_gpu_hours": gpu_hours(self.cluster, self.search_s.value),
            "search_cost": cost(self.limits, gpu_hours(self.cluster, self.search_s.value)),
            "reference": self.reference,
            "speed_up": gain and gain.value,
            "speed_up_interval": gain and [gain.low, gain.high],
            "pays_after_s": pays and _finite(pays.value),
            "pays_after_interval_s": pays and [_finite(pays.low), _finite(pays.high)],
            "run_s": self.run_s,
            "net_s": net and net.value,
            "net_gpu_hours": net_hours,
            "net_cost": None if net_hours is None else cost(self.limits, net_hours),
        }


def realised(
    spent: Spending, problem: Problem, speed_up: Interval | None, *, reference: str, reference_rate: float | None, global_batch: int | None
) -> BreakEven:
    """Return the break-even of a study from what was measured.

    Args:
        speed_up: Speed-up of the winner over the reference, with its interval; None if it is unknown.
        reference: Name of the reference.
        reference_rate: Throughput of the reference, in steps per second; None if it is unknown.
        global_batch: Global batch of the reference; None if there is no reference.
    """
    seconds = spent.seconds
    return BreakEven(
        cluster=problem.cluster,
        limits=problem.limits,
        search_s=Interval(value=seconds, low=seconds, high=seconds),
        speed_up=speed_up,
        reference=reference,
        run_s=run_length_s(problem, reference_rate, global_batch),
    )


def run_length_s(problem: Problem, reference_rate: float | None, global_batch: int | None) -> float | None:
    """Return the seconds of the run in the reference configuration: `run_length`, or `[train] samples` at its throughput and batch."""
    if problem.limits.run_length_s is not None:
        return problem.limits.run_length_s
    samples = problem.run_options.samples
    return None if samples is None or not reference_rate or not global_batch else samples / global_batch / reference_rate


def _break_even(search_s: float, speed_up: float) -> float:
    return search_s / (1 - 1 / speed_up) if speed_up > 1 else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
