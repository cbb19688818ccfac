"""Test whether the winner is really faster, from two sets of repeats that ran in turn."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Holds a value between two ends: a geometric mean of repeats and 95% confidence, or a median of predicted draws and 90% of them."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Holds the winner's speed-up over another configuration, from repeats of both."""

    winner: Interval
    """The winner's throughput, in steps per second."""
    other: Interval
    """The other configuration's throughput, in steps per second."""
    ratio: Interval
    """The former divided by the latter; its interval is that of the ratio, by Welch's t."""

    def __str__(self) -> str:
        shown = f"{self.ratio.value:.2f}x [{self.ratio.low:.2f}, {self.ratio.high:.2f}]"
        return f"{shown}, tied" if self.tied else shown

    @property
    def tied(self) -> bool:
        """Return True if the interval of the ratio contains 1: neither configuration was shown to be faster."""
        return self.ratio.low <= 1 <= self.ratio.high

    @property
    def inverse(self) -> Interval:
        """Return the ratio of the other configuration over the winner."""
        return Interval(value=1 / self.ratio.value, low=1 / self.ratio.high, high=1 / self.ratio.low)


def speed_up(winner: Sequence[float], other: Sequence[float]) -> SpeedUp:
    """Compare repeated throughputs (steps per second, at least two each) on the log scale, by Student's and Welch's t."""
    return SpeedUp(winner=interval(winner), other=interval(other), ratio=_ratio(winner, other))


def interval(rates: Sequence[float]) -> Interval:
    """Return the geometric mean of repeated throughputs (at least two) with its interval, by Student's t on the log scale."""
    logs = np.log(rates)
    return _geometric(logs.mean(), logs.var(ddof=1) / len(logs), len(logs) - 1)


def _ratio(winner: Sequence[float], other: Sequence[float]) -> Interval:
    """Return the ratio of two geometric means; the degrees of freedom are those of Welch and Satterthwaite."""
    both = np.log(winner), np.log(other)
    squares = [logs.var(ddof=1) / len(logs) for logs in both]
    share = squares[0] / sum(squares) if any(squares) else 0.5  # equal repeats, as simulated ones are, have an exact mean
    freedom = 1 / (share**2 / (len(winner) - 1) + (1 - share) ** 2 / (len(other) - 1))
    return _geometric(both[0].mean() - both[1].mean(), sum(squares), freedom)


def _geometric(log_mean: float, squared_error: float, freedom: float) -> Interval:
    """Return Student's interval around a mean of logarithms whose squared standard error is given."""
    from scipy.special import stdtrit  # a quantile; scipy.stats takes a second to import

    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(squared_error)
    return Interval(value=math.exp(log_mean), low=math.exp(log_mean - half), high=math.exp(log_mean + half))
