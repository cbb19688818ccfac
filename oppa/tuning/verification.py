"""Test whether the winner is really faster, from two sets of repeats that ran in turn."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
    from scipy.stats import ttest_1samp

    logs = np.log(rates)
    return _geometric(logs.mean(), lambda: ttest_1samp(logs, 0.0))


def _ratio(winner: Sequence[float], other: Sequence[float]) -> Interval:
    from scipy.stats import ttest_ind

    ours, theirs = np.log(winner), np.log(other)
    return _geometric(ours.mean() - theirs.mean(), lambda: ttest_ind(ours, theirs, equal_var=False))


def _geometric(log_mean: float, test: Callable[[], Any]) -> Interval:
    """Return the interval around a mean of logarithms that a test of scipy gives."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # equal repeats, as simulated ones are, have an exact mean
        found = test().confidence_interval(CONFIDENCE)
    return Interval(value=math.exp(log_mean), low=math.exp(found.low), high=math.exp(found.high))
