"""Predict the step time on numbers of devices that were not measured, from a few that were, with the error of the prediction.

The model is t(n) = a / n + b + c log2 n, with a, b, c >= 0. Its terms are work that devices share, work that each repeats, and messages in
log n rounds.

Notation:
    n      number of devices
    t      seconds per optimizer step, all at one global batch
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Self

import numpy as np
from scipy.optimize import nnls

from oppa.errors import MeasurementError


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingLaw:
    """The step time over the number of devices."""

    coefficients: tuple[float, float, float]
    """a, b and c, in seconds."""
    log_stddev: float
    """Root mean square of log(predicted / measured), when each measured size is left out of the fit in turn."""

    @classmethod
    def fit(cls, step_times_s: Mapping[int, float]) -> Self:
        """Fit the law to step times by number of devices, by relative least squares.

        The law has its first two terms, and the third one from four sizes on.

        Raises:
            MeasurementError: there are fewer than two sizes, whose prediction would have no error, or a time is not positive.
        """
        if len(step_times_s) < 2 or not all(0 < time < math.inf for time in step_times_s.values()):
            times = ", ".join(f"{devices}: {time:g} s" for devices, time in step_times_s.items())
            raise MeasurementError(f"step times of `{times}` predict no others", hint="measure two sizes or more")
        errors = []
        for left_out, time in step_times_s.items():
            others = {devices: each for devices, each in step_times_s.items() if devices != left_out}
            errors.append(math.log(_step_s(_coefficients(others), left_out) / time))
        return cls(_coefficients(step_times_s), math.sqrt(math.fsum(error**2 for error in errors) / len(errors)))

    def step_s(self, devices: int) -> float:
        """Return the predicted seconds per step on a number of devices."""
        return _step_s(self.coefficients, devices)


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
