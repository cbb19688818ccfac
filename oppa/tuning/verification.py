"""Is the winner really faster than the default? Both are run again, interleaved, and the gain is given with its interval.

A search reports the luckiest of many noisy trials: only fresh repeats, side by side, say what the winner is worth.
"""

import dataclasses
import math
from collections.abc import Sequence

from oppa.problem.configuration import Configuration
from oppa.study import Trial
from oppa.study.records import VERIFICATION
from oppa.tuning.search import Bench

CONFIDENCE = 0.95
FALLBACKS = 3
"""Configurations that may fail their repeats before verification gives up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A geometric mean and its confidence interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The winner's throughput over the default's; `tied` when their own intervals overlap."""

    winner: Interval
    default: Interval
    ratio: Interval
    tied: bool


def repeat(bench: Bench, configurations: Sequence[Configuration], repeats: int) -> Configuration | None:
    """Run each configuration until it has `repeats` verification trials, in turn, the order reversed every round.

    Returns:
        The first configuration that failed a repeat, or None if all of them ran.
    """
    while True:
        bench.study.recover()
        runs = {configuration.id: verified(bench.study.trials(), configuration) for configuration in configurations}
        for configuration in configurations:
            if any(not trial.feasible for trial in runs[configuration.id]):
                return configuration
        round_ = min(len(trials) for trials in runs.values())
        if round_ >= repeats:
            return None
        order = list(configurations) if round_ % 2 == 0 else list(configurations)[::-1]
        due = next(configuration for configuration in order if len(runs[configuration.id]) == round_)
        lease = bench.study.claim(due, purpose=VERIFICATION)
        assert lease is not None, "verification trials are never refused"
        bench.run(lease)


def verified(trials: Sequence[Trial], configuration: Configuration) -> list[Trial]:
    """The verification trials of a configuration that were not interrupted."""
    return [t for t in trials if t.purpose == VERIFICATION and t.configuration == configuration and t.outcome != "interrupted"]


def gain(winner: Sequence[float], default: Sequence[float]) -> Gain:
    """Compare repeated throughputs (steps per second, at least two each) on the log scale, by Student's and Welch's t."""
    ours, theirs = _interval(winner), _interval(default)
    return Gain(winner=ours, default=theirs, ratio=_ratio(winner, default), tied=ours.low <= theirs.high and theirs.low <= ours.high)


def _interval(rates: Sequence[float]) -> Interval:
    mean, variance = _log_moments(rates)
    return _around(mean, math.sqrt(variance / len(rates)), len(rates) - 1)


def _ratio(winner: Sequence[float], default: Sequence[float]) -> Interval:
    (mean_a, var_a), (mean_b, var_b) = _log_moments(winner), _log_moments(default)
    a, b = var_a / len(winner), var_b / len(default)
    freedom = (a + b) ** 2 / (a**2 / (len(winner) - 1) + b**2 / (len(default) - 1)) if a + b > 0 else 1.0
    return _around(mean_a - mean_b, math.sqrt(a + b), freedom)


def _log_moments(rates: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(rate) for rate in rates]
    mean = sum(logs) / len(logs)
    return mean, sum((log - mean) ** 2 for log in logs) / (len(logs) - 1)


def _around(mean: float, standard_error: float, freedom: float) -> Interval:
    from scipy.stats import t

    half = float(t.ppf(0.5 + CONFIDENCE / 2, freedom)) * standard_error
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
