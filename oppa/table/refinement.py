"""Refinement: what the step times of a training run say of a table that short trials have made.

Model: the logarithm of the rate in training = that of the row + delta + its own deviation.

Notation (logarithms of steps per second; i is a row that training has been in):
    m, s       median of the row's belief, and its log_stddev
    delta      what all rows have in common, such as the cost of gradient statistics; N(0, t^2)
    e          own deviation of a row; N(0, s^2), independent of the others
    y, v       what was seen of i, and its variance:  y_i = m_i + delta + e_i + noise of variance v_i
    g_i        s_i^2 / (s_i^2 + v_i), the share of its surprise that a row takes for its own

Everything is normal, so the belief afterwards is exact: delta has precision 1/t^2 + sum of 1/(s_i^2 + v_i); with mean d and variance V,

    a row that was seen       mean m + (1 - g) d + g (y - m)      variance (1 - g)^2 V + s^2 v / (s^2 + v)
    any other                 mean m + d                          variance s^2 + V
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from oppa.errors import MeasurementError
from oppa.problem.configuration import Configuration
from oppa.table.rows import Row
from oppa.table.table import Table

Array = NDArray[np.float64]

COMMON_LOG_STDDEV = 0.2
"""t: training differs from trials by a fifth, give or take: statistics, data loading, checkpoints, neighbours."""
BETWEEN_RUNS_LOG_STDDEV = 0.01
"""Runs of one configuration differ by this, however many steps each has."""
_LEAST_VARIANCE = 1e-12
"""Of a step: imitated steps may all take the same time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Optimizer steps of a training run that were made in one configuration."""

    configuration: Configuration
    steps: int
    log_steps_per_s: float
    """Logarithm of steps over the seconds that they took."""
    variance: float
    """Of the logarithm of a single step's rate; that of the mean of all is this over `steps`."""

    @classmethod
    def of(cls, configuration: Configuration, step_times_s: Sequence[float]) -> Self:
        """What step times say, shape (q,), q >= 2, seconds; the relative variance of a time is that of the logarithm of its rate.

        Raises:
            MeasurementError: if a time is not finite and positive, or there are fewer than two.
        """
        wrong = [time for time in step_times_s if not (math.isfinite(time) and time > 0)]
        if wrong or len(step_times_s) < 2:
            said = f"a step time of {wrong[0]} s" if wrong else f"{len(step_times_s)} step times"
            raise MeasurementError(f"{said} cannot refine a table", hint="give two or more, finite and positive")
        mean_s = statistics.fmean(step_times_s)
        variance = statistics.variance(step_times_s, mean_s) / mean_s**2
        return cls(configuration=configuration, steps=len(step_times_s), log_steps_per_s=-math.log(mean_s), variance=variance)

    @property
    def precision(self) -> float:
        """Of what its steps say, runs not being apart."""
        return self.steps / max(self.variance, _LEAST_VARIANCE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was seen of one configuration."""

    mean: float
    """Of the logarithm of its rate."""
    variance: float


def refined(table: Table, observations: Iterable[Observation], *, common_log_stddev: float = COMMON_LOG_STDDEV) -> Table:
    """The table of rates in training; where nothing was seen of that, the table as it is.

    Their order does not matter, nor how steps are cut into observations. Refine the table that was profiled, each time with all that was
    seen: a refined table knows `delta` already. A configuration that is not in the table becomes a row of its own.
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
        common_log_stddev=common_log_stddev,
    )
    rows = [
        dataclasses.replace(
            row,
            steps_per_s=float(median),
            log_stddev=float(log_stddev),
            source="measured" if row.configuration in seen else row.source,
        )
        for row, median, log_stddev in zip(table.rows, medians, log_stddevs, strict=True)
    ]
    strangers = sorted(seen.keys() - places.keys(), key=lambda each: (each.global_batch, each.id))
    rows += [_row(configuration, seen[configuration]) for configuration in strangers]
    steps = table.origin.training_steps + sum(each.steps for each in known)
    return Table(rows=tuple(rows), origin=dataclasses.replace(table.origin, training_steps=steps))


def posterior(
    medians: Array, log_stddevs: Array, places: Sequence[int], seen: Sequence[Seen], *, common_log_stddev: float = COMMON_LOG_STDDEV
) -> tuple[Array, Array]:
    """What to believe of all rows, given what was seen of some: medians, and deviations of the logarithms.

    Args:
        medians: Of the belief before, steps per second, shape (n,).
        log_stddevs: Shape (n,).
        places: Of the rows that something was seen of, shape (k,).
        seen: Of each of these.
    """
    means, variances = np.log(medians[places]), log_stddevs[places] ** 2
    theirs, noise = np.array([each.mean for each in seen]), np.array([each.variance for each in seen])
    surprises, weights = theirs - means, 1 / (variances + noise)
    precision = math.fsum([1 / common_log_stddev**2, *weights])
    delta, variance = math.fsum(weights * surprises) / precision, 1 / precision
    share = variances / (variances + noise)
    after, deviations = medians * math.exp(delta), np.sqrt(log_stddevs**2 + variance)
    after[places] = medians[places] * np.exp((1 - share) * delta + share * surprises)
    deviations[places] = np.sqrt((1 - share) ** 2 * variance + share * noise)
    return after, deviations


def together(observations: Iterable[Observation]) -> dict[Configuration, Seen]:
    """All that was seen of each configuration; their order does not show."""
    found = defaultdict[Configuration, list[Observation]](list)
    for each in observations:
        found[each.configuration].append(each)
    return {configuration: _of_one(own) for configuration, own in found.items()}


def _of_one(observations: Sequence[Observation]) -> Seen:
    """Means weighted by their precision; fsum, so that no order of them shows in the last digit."""
    total = math.fsum(each.precision for each in observations)
    mean = math.fsum(each.precision * each.log_steps_per_s for each in observations) / total
    return Seen(mean=mean, variance=1 / total + BETWEEN_RUNS_LOG_STDDEV**2)


def _row(configuration: Configuration, seen: Seen) -> Row:
    """What was seen, with nothing believed before: the limit of a large log_stddev."""
    return Row(
        configuration=configuration,
        steps_per_s=math.exp(seen.mean),
        log_stddev=math.sqrt(seen.variance),
        memory_bytes=None,
        source="measured",
    )
