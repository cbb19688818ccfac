"""Tests whether the winner is really faster, from two sets of repeats that ran in turn."""

import dataclasses
import math
from collections.abc import Sequence

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A geometric mean and its confidence interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """The winner's speed-up over another configuration; `tied` if their own intervals overlap."""

    winner: Interval
    other: Interval
    ratio: Interval
    tied: bool


def speed_up(winner: Sequence[float], other: Sequence[float]) -> SpeedUp:
    """Compare repeated throughputs (steps per second, at least two each) on the log scale, by Student's and Welch's t."""
    ours, theirs = _interval(winner), _interval(other)
    return SpeedUp(winner=ours, other=theirs, ratio=_ratio(winner, other), tied=ours.low <= theirs.high and theirs.low <= ours.high)


def _interval(rates: Sequence[float]) -> Interval:
    mean, variance = _log_moments(rates)
    return _around(mean, math.sqrt(variance / len(rates)), len(rates) - 1)


def _ratio(winner: Sequence[float], other: Sequence[float]) -> Interval:
    (mean_a, var_a), (mean_b, var_b) = _log_moments(winner), _log_moments(other)
    a, b = var_a / len(winner), var_b / len(other)
    freedom = (a + b) ** 2 / (a**2 / (len(winner) - 1) + b**2 / (len(other) - 1)) if a + b > 0 else 1.0
    return _around(mean_a - mean_b, math.sqrt(a + b), freedom)


def _log_moments(rates: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(rate) for rate in rates]
    mean = sum(logs) / len(logs)
    return mean, sum((log - mean) ** 2 for log in logs) / (len(logs) - 1)


def _around(mean: float, standard_error: float, freedom: float) -> Interval:
    from scipy.stats import t

    half = float(t.ppf(0.5 + CONFIDENCE / 2, freedom)) * standard_error
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
