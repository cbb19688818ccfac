"""Predict the step time on numbers of devices that were not measured, from a few that were, with the error of the prediction.

The model is t(n) = a / n + b + c log2 n, with a, b, c >= 0. Its terms are work that devices share, work that each repeats, and messages in
log n rounds.

Few sizes do not determine the three terms. The error of a prediction therefore reaches to all laws that explain the measurements within
their noise. The least and the largest time that these laws predict are linear programs in a, b and c.

Notation:
    n      number of devices
    t      seconds per optimizer step, all at one global batch
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

from oppa.errors import MeasurementError

WITHIN = 2.0
"""Standard deviations by which a law that explains a measurement may miss it."""
LARGEST = 9.0
"""Largest error that is stated, as a logarithm."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Predicts the step time over the number of devices."""

    coefficients: tuple[float, float, float]
    """a, b and c, in seconds."""
    log_stddev: float
    """Root mean square of log(predicted / measured), when each measured size is left out of the fit in turn."""
    explained_s: tuple[tuple[int, float, float], ...]
    """Each measured number of devices, with the least and the largest step time of a law that explains its measurement."""

    @classmethod
    def fit(cls, step_times_s: Mapping[int, float], noise: Mapping[int, float] | None = None) -> Self:
        """Fit the law to step times by number of devices, by relative least squares.

        The law has its first two terms, and the third one from four sizes on. It explains the measurements itself: what it misses counts
        as noise.

        Args:
            noise: Standard deviation of the logarithm of each time; 0 unless given.

        Raises:
            MeasurementError: there are fewer than two sizes, whose prediction would have no error, or a time is not positive.
        """
        if len(step_times_s) < 2 or not all(0 < time < math.inf for time in step_times_s.values()):
            times = ", ".join(f"{devices}: {time:g} s" for devices, time in step_times_s.items())
            raise MeasurementError(f"step times of `{times}` predict no others", hint="measure two sizes or more")
        errors = []
        for left_out, time in step_times_s.items():
            others = {devices: each for devices, each in step_times_s.items() if devices != left_out}
            errors.append(_log_ratio(_step_s(_coefficients(others), left_out), time))
        found = _coefficients(step_times_s)
        explained = []
        for devices, time in step_times_s.items():
            within = WITHIN * (noise or {}).get(devices, 0.0) + abs(_log_ratio(_step_s(found, devices), time))
            explained.append((devices, time * math.exp(-within), time * math.exp(within)))
        return cls(found, math.sqrt(math.fsum(error**2 for error in errors) / len(errors)), tuple(explained))

    def step_s(self, devices: int) -> float:
        """Return the predicted seconds per step on a number of devices; positive, even if only the term in log n is."""
        return max(_step_s(self.coefficients, devices), math.exp(-LARGEST) * self.explained_s[0][1])

    def log_error(self, devices: int) -> float:
        """Return the error of the logarithm of a prediction: `log_stddev`, or the distance to the farthest of the laws, if that is more."""
        least, largest = self._extremes(devices)
        farthest = max(math.log(largest), -math.log(max(least, math.exp(-LARGEST))))  # the solver may round the least one to 0
        return min(LARGEST, max(self.log_stddev, farthest))

    def _extremes(self, devices: int) -> tuple[float, float]:
        """Return the least and the largest time of the laws that explain the measurements, divided by the prediction."""
        unit_s = self.explained_s[0][1]  # coefficients are of order one in this unit
        rows, bounds = list[NDArray[np.float64]](), list[float]()
        for each, least_s, largest_s in self.explained_s:
            terms = np.array(_terms(each)) * unit_s
            rows += [terms / largest_s, -terms / least_s]
            bounds += [1.0, -1.0]
        ratio = np.array(_terms(devices)) * unit_s / self.step_s(devices)
        least, largest = (linprog(sign * ratio, A_ub=rows, b_ub=bounds).fun for sign in (1, -1))
        if least is None or largest is None:  # the solver failed, for example on bounds that are many orders of magnitude apart
            return math.exp(-LARGEST), math.exp(LARGEST)
        return least, -largest


def _log_ratio(predicted_s: float, measured_s: float) -> float:
    """Return log(predicted / measured), at least -LARGEST: a law that has only the term in log n predicts 0 s on one device."""
    return math.log(max(predicted_s / measured_s, math.exp(-LARGEST)))


def _coefficients(step_times_s: Mapping[int, float]) -> tuple[float, float, float]:
    terms = min(len(step_times_s), 2 if len(step_times_s) < 4 else 3)
    rows = np.array([[each / time for each in _terms(devices)[:terms]] for devices, time in step_times_s.items()])
    found, _ = nnls(rows, np.ones(len(rows)))
    a, b, c, *_ = (*map(float, found), 0.0, 0.0)
    return a, b, c


def _terms(devices: int) -> tuple[float, float, float]:
    return 1 / devices, 1.0, math.log2(devices)


def _step_s(coefficients: tuple[float, float, float], devices: int) -> float:
    return math.fsum(each * term for each, term in zip(coefficients, _terms(devices), strict=True))
