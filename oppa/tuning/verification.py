"""Tests whether the winner is really faster, from two sets of repeats that ran in turn."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # quantiles; scipy.stats takes a second to import

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

    @property
    def inverse(self) -> Interval:
        """Return the ratio of the other configuration over the winner."""
        return Interval(value=1 / self.ratio.value, low=1 / self.ratio.high, high=1 / self.ratio.low)


def speed_up(winner: Sequence[float], other: Sequence[float]) -> SpeedUp:
    """Compare repeated throughputs (steps per second, at least two each) on the log scale, by Student's and Welch's t."""
    ours, theirs = interval(winner), interval(other)
    return SpeedUp(winner=ours, other=theirs, ratio=_ratio(winner, other), tied=ours.low <= theirs.high and theirs.low <= ours.high)


def interval(rates: Sequence[float]) -> Interval:
    """Return the geometric mean of repeated throughputs (at least two) with its interval, by Student's t on the log scale."""
    logs = np.log(rates)
    return _geometric(logs.mean(), _of_mean(logs), len(logs) - 1)


def _ratio(winner: Sequence[float], other: Sequence[float]) -> Interval:
    logs = [np.log(winner), np.log(other)]
    parts = [_of_mean(each) for each in logs]
    squares = sum(part**2 / (len(each) - 1) for part, each in zip(parts, logs, strict=True))
    freedom = sum(parts) ** 2 / squares if squares else 1.0  # equal repeats, as simulated ones are, have an exact mean
    return _geometric(logs[0].mean() - logs[1].mean(), sum(parts), freedom)


def _of_mean(logs: NDArray[np.float64]) -> float:
    """Return the variance of the mean."""
    return float(logs.var(ddof=1) / len(logs))


def _geometric(log_mean: float, variance: float, freedom: float) -> Interval:
    """Return the interval around a mean of logarithms, of whose variance so many degrees of freedom are known."""
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Interval(value=math.exp(log_mean), low=math.exp(log_mean - half), high=math.exp(log_mean + half))
