"""Refine a table that short trials have made, by the step times of a training run.

Model: the logarithm of the rate in training = that of the row + delta + the row's own deviation.

Notation (logarithms of steps per second; i is a row in which training has run):
    m, s       log of the row's median rate, and its log_stddev
    delta      deviation that all rows share, such as the cost of gradient statistics; N(0, t^2)
    e          own deviation of a row; N(0, s^2), independent of the others
    y, v       observed log rate of i, and its variance:  y_i = m_i + delta + e_i + noise of variance v_i
    g_i        s_i^2 / (s_i^2 + v_i), the share of its surprise that a row takes for its own

Everything is normal, so the posterior is exact. The precision of delta is 1/t^2 + sum of 1/(s_i^2 + v_i). With mean d and variance V of
delta, the posterior is

    a row that was observed   mean m + (1 - g) d + g (y - m)      variance (1 - g)^2 V + s^2 v / (s^2 + v)
    any other                 mean m + d                          variance s^2 + V
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from oppa.errors import MeasurementError
from oppa.problem.configuration import Configuration
from oppa.table.rows import TableRow
from oppa.table.table import Table
from oppa.trials.step_correlation import variance_of_mean

Array = NDArray[np.float64]

COMMON_LOG_STDDEV = 0.2
"""The value of t: training differs from trials by about a fifth, by statistics, data loading, checkpoints and neighbours."""
BETWEEN_RUNS_LOG_STDDEV = 0.01
"""Standard deviation between runs of one configuration, in log units, however many steps each has."""
_LEAST_VARIANCE = 1e-12
"""Least variance of a step: simulated steps may all take the same time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeObservation:
    """Summarises the optimizer steps of a training run that were made in one configuration."""

    configuration: Configuration
    steps: int
    log_steps_per_s: float
    """Logarithm of the number of steps over the seconds that they took."""
    variance: float
    """Variance of a single step's log rate, such that this over `steps` is that of the mean of all steps."""
    in_two: bool = False
    """True if the steps had a single micro-batch that was taken in two to be measured, which takes longer."""

    @classmethod
    def of(cls, configuration: Configuration, step_times_s: Sequence[float], *, in_two: bool = False) -> Self:
        """Return the observation that step times give, in seconds, shape (q,), q >= 2.

        The relative variance of a time is that of the logarithm of its rate. It is larger if consecutive steps vary together.

        Raises:
            MeasurementError: if a time is not finite and positive, or there are fewer than two.
        """
        wrong = [time for time in step_times_s if not (math.isfinite(time) and time > 0)]
        if wrong or len(step_times_s) < 2:
            values = f"a step time of {wrong[0]} s" if wrong else f"{len(step_times_s)} step times"
            raise MeasurementError(f"{values} cannot refine a table", hint="give two or more step times, finite and positive")
        mean_s = statistics.fmean(step_times_s)
        steps, variance = len(step_times_s), variance_of_mean(np.asarray(step_times_s, np.float64)) / mean_s**2
        return cls(configuration=configuration, steps=steps, log_steps_per_s=-math.log(mean_s), variance=steps * variance, in_two=in_two)

    def __add__(self, other: Self) -> Self:
        """Combine two observations of one configuration into one that refines a table equally."""
        steps, precision = self.steps + other.steps, self.precision + other.precision
        mean = (self.precision * self.log_steps_per_s + other.precision * other.log_steps_per_s) / precision
        return dataclasses.replace(self, steps=steps, log_steps_per_s=mean, variance=steps / precision)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "configuration": self.configuration.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the observation that `to_dict` wrote."""
        return cls(**{**values, "configuration": Configuration.from_dict(values["configuration"])})

    @property
    def precision(self) -> float:
        """Return the precision of the mean log rate, without the variance between runs."""
        return self.steps / max(self.variance, _LEAST_VARIANCE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CombinedObservation:
    """Combines all observations of one configuration."""

    mean: float
    """Mean of the log rate."""
    variance: float


def refined(table: Table, observations: Iterable[StepTimeObservation]) -> Table:
    """Return the table of rates in training; without observations, the table unchanged.

    The result does not depend on the order of the observations. Those of a configuration that have a common variance may be cut anywhere.
    Refine the table that was profiled, each time with all observations: a refined table contains `delta` already. A configuration that is
    not in the table becomes a row of its own.
    """
    known = list(observations)
    if not known:
        return table
    seen = together(known)
    places = {row.configuration: place for place, row in enumerate(table.rows)}
    inside = [configuration for configuration in seen if configuration in places]
    medians, log_stddevs = posterior(
        np.array([row.steps_per_s for row in table.rows]),
        np.array([row.log_stddev for row in table.rows]),
        [places[configuration] for configuration in inside],
        [seen[configuration] for configuration in inside],
    )
    rows = [
        dataclasses.replace(
            row, steps_per_s=float(median), log_stddev=float(log_stddev), source="measured" if row.configuration in seen else row.source
        )
        for row, median, log_stddev in zip(table.rows, medians, log_stddevs, strict=True)
    ]
    strangers = sorted(seen.keys() - places.keys(), key=lambda each: (each.global_batch, each.id))
    rows += [_row(configuration, seen[configuration]) for configuration in strangers]
    steps = table.origin.training_steps + sum(each.steps for each in known)
    return Table(rows=tuple(rows), origin=dataclasses.replace(table.origin, training_steps=steps))


def posterior(medians: Array, log_stddevs: Array, places: Sequence[int], seen: Sequence[CombinedObservation]) -> tuple[Array, Array]:
    """Return the posterior of all rows, given observations of some: medians, and standard deviations of the logarithms, shape (n,) each.

    Args:
        medians: Prior medians, steps per second, shape (n,).
        log_stddevs: Prior standard deviations of the logarithms, shape (n,).
        places: Positions of the observed rows, shape (k,).
        seen: The observations of each of these.
    """
    means, variances = np.log(medians[places]), log_stddevs[places] ** 2
    theirs, noise = np.array([each.mean for each in seen]), np.array([each.variance for each in seen])
    surprises, weights = theirs - means, 1 / (variances + noise)
    precision = math.fsum([1 / COMMON_LOG_STDDEV**2, *weights])
    delta, variance = math.fsum(weights * surprises) / precision, 1 / precision
    share = variances / (variances + noise)
    after, deviations = medians * math.exp(delta), np.sqrt(log_stddevs**2 + variance)
    after[places] = medians[places] * np.exp((1 - share) * delta + share * surprises)
    deviations[places] = np.sqrt((1 - share) ** 2 * variance + share * noise)
    return after, deviations


def plain_first(observations: Iterable[StepTimeObservation]) -> list[StepTimeObservation]:
    """Return observations without the steps in two of configurations that have others."""
    known = list(observations)
    plain = {each.configuration for each in known if not each.in_two}
    return [each for each in known if not each.in_two or each.configuration not in plain]


def with_common_variance(observations: Iterable[StepTimeObservation]) -> list[StepTimeObservation]:
    """Return observations in which those of one configuration have their mean variance of a step, so that each step counts alike.

    Few steps do not show how much a step varies: two that happen to take equally long would outweigh hundreds of others.
    """
    known, sums = list(observations), defaultdict[Configuration, list[float]](lambda: [0.0, 0.0])
    for each in known:
        sums[each.configuration][0] += (each.steps - 1) * each.variance
        sums[each.configuration][1] += each.steps - 1
    means = {configuration: total / degrees for configuration, (total, degrees) in sums.items() if degrees}
    return [dataclasses.replace(each, variance=means.get(each.configuration, each.variance)) for each in known]


def together(observations: Iterable[StepTimeObservation]) -> dict[Configuration, CombinedObservation]:
    """Combine the observations of each configuration, independently of their order."""
    found = defaultdict[Configuration, list[StepTimeObservation]](list)
    for each in observations:
        found[each.configuration].append(each)
    return {configuration: _of_one(own) for configuration, own in found.items()}


def _of_one(observations: Sequence[StepTimeObservation]) -> CombinedObservation:
    """Return the mean weighted by precision. Sums by fsum do not depend on the order, not even in the last digit."""
    total = math.fsum(each.precision for each in observations)
    mean = math.fsum(each.precision * each.log_steps_per_s for each in observations) / total
    return CombinedObservation(mean=mean, variance=1 / total + BETWEEN_RUNS_LOG_STDDEV**2)


def _row(configuration: Configuration, seen: CombinedObservation) -> TableRow:
    """Return a row for observations without a prior: the limit of a large log_stddev."""
    return TableRow(
        configuration=configuration,
        steps_per_s=math.exp(seen.mean),
        log_stddev=math.sqrt(seen.variance),
        memory_bytes=None,
        source="measured",
    )
