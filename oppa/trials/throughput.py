"""Estimate the throughput of a configuration, and its noise, from the times of its steps.

Notation:
    t   wall-clock seconds of the steps kept   (q,)
    r   optimizer steps per second
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.errors import MeasurementError
from oppa.problem.training import FEWEST_STEPS
from oppa.trials.step_correlation import neighbour_correlation, variance_of_mean

TRIAL_STDDEV = 0.03
"""Standard deviation between trials of one configuration, in log units: no trial measures exactly the true throughput."""
CLEARLY_SLOWER = 1.2
"""Factor over the usual step time. Early steps that are slower than that, plus the usual spread, are warm-up."""
SEEN = 6
"""Number of steps below which a longer warm-up cannot be distinguished from noise."""
RECURRING, MOST_OUTLIERS = 0.1, 3
"""Outliers recur if they are more than one, and more than this share of the steps or than this number.

They are then part of how the configuration runs.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputEstimate:
    """Holds a throughput in steps per second, its variance in (steps per second)^2, and the number of steps kept."""

    steps_per_s: float
    variance: float
    kept: int
    correlation: float = 0.0
    """Correlation of neighbouring steps; 0 unless it is significant."""


def estimate(step_times_s: Sequence[float], *, least_correlation: float = 0.0) -> ThroughputEstimate:
    """Return the throughput q / sum(t) of q kept steps, with its variance.

    The paper has mean(1/t) instead of q / sum(t). It exceeds q / sum(t) (Jensen) and rewards jitter. Stalls that recur are kept.

    Args:
        step_times_s: Wall-clock seconds of every step, the first (warm-up) included, shape (1 + q,), q >= 1.
        least_correlation: Correlation of neighbouring steps that is known from other trials.

    Raises:
        MeasurementError: there is no step after the first, or a time is not finite and positive.
    """
    t = _checked(step_times_s)[warm_up_steps(step_times_s) :]
    outside = _is_outlier(t)
    recurring = outside.sum() > max(1, min(RECURRING * len(t), MOST_OUTLIERS))
    t = t if recurring else t[~outside]
    steps_per_s = float(len(t) / t.sum())
    variance = steps_per_s**2 * _relative_variance(t, least_correlation)
    return ThroughputEstimate(steps_per_s=steps_per_s, variance=variance, kept=len(t), correlation=neighbour_correlation(t))


def _relative_variance(t: NDArray[np.float64], least_correlation: float) -> float:
    """Return the relative variance of q / sum(t).

    It is the larger one of two. That of the mean of t (delta method) is too small where most steps belong to a warm-up. That of the mean of
    1/t (OPPA eq. 28 divided by q, Cor. F.2) is too small where stalls recur.
    """
    if len(t) < 2:
        return 0.0
    mean = float(t.mean())
    of_times = variance_of_mean(t, least_correlation=least_correlation) / mean**2
    return max(of_times, variance_of_mean(1 / t, least_correlation=least_correlation) * mean**2)


def settled(step_times_s: Sequence[float], settle: int) -> Sequence[float]:
    """Return the times of the steps after the first `settle`; the last three if fewer would be left, as of a trial with other limits."""
    return step_times_s[min(settle, max(0, len(step_times_s) - FEWEST_STEPS)) :]


def paper_estimate(step_times_s: Sequence[float]) -> ThroughputEstimate:
    """Return the mean and the variance of 1/t as the paper writes them (OPPA eq. 28).

    All outliers are removed, and the variance is that of one step. Arguments and errors are those of `estimate`.
    """
    t = _checked(step_times_s)[1:]
    t = t[~_is_outlier(t)]
    return ThroughputEstimate(steps_per_s=float(np.mean(1 / t)), variance=float(np.var(1 / t)), kept=len(t))


def warm_up_steps(step_times_s: Sequence[float]) -> int:
    """Return the number of leading warm-up steps: the first step, and those after it that are all clearly slower than usual.

    Compilation and the early routing of experts take several steps. A step is warm-up if it, and every step before it, is slower than
    nearly all of the second half. At most half of the steps are warm-up.
    """
    t = np.asarray(step_times_s, dtype=np.float64)
    if len(t) < SEEN:
        return 1
    half = len(t) // 2
    low, high = np.quantile(t[half:], (0.25, 0.75))
    usual = t[1:half] <= CLEARLY_SLOWER * high + (high - low)
    return 1 + (int(usual.argmax()) if usual.any() else len(usual))


def _checked(step_times_s: Sequence[float]) -> NDArray[np.float64]:
    times = np.asarray(step_times_s, dtype=np.float64)
    for step, time_s in enumerate(times):
        if not (np.isfinite(time_s) and time_s > 0):
            raise MeasurementError(f"step {step} took {time_s} s", hint="check the runner's clock: a step time is finite and positive")
    if len(times) < 2:
        raise MeasurementError(f"{len(times)} steps are too few for a measurement: the first is a warm-up", hint="run at least 2 steps")
    return times


def _is_outlier(t: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which times are more than 2 x IQR from the median (App. F.2).

    The paper's "at least" would drop every step if all times are equal.
    """
    low, median, high = np.quantile(t, (0.25, 0.5, 0.75))
    return np.asarray(np.abs(t - median) > 2 * (high - low))
