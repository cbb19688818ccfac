"""Combine what several studies learned of one coefficient into a distribution for another job: a normal hierarchical model.

Notation (n studies, logarithms of the coefficient):
    place       where the trials of a study alone put it                                     (n,)
    variance    how uncertain its trials leave it, widened by how unlike its job is          (n,)
    excess      variance between jobs beyond what these variances and ELSEWHERE explain

A study's posterior contains its prior. Its trials alone are the posterior divided by the prior, so that the prior counts once, however
many studies there are. The excess is found where the weighted squares of the places have their median under the chi-squared distribution.
This is the median-unbiased estimate of Paule and Mandel (Viechtbauer 2007), which few studies seldom put too low; one study has no excess.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

from scipy.optimize import brentq
from scipy.special import chdtri  # quantiles; scipy.stats takes a second to import

from oppa.cost.coefficients import Belief
from oppa.tuning.surrogate_summary import IDENTIFIED

ELSEWHERE = 0.1
"""Standard deviation of another job's coefficient around this one, in log units, however well this one was learned."""
NOTHING = 1e-9
"""Share of the prior's precision below which trials show nothing of a coefficient."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientEvidence:
    """States what the trials of a study alone show: where they put the logarithm of a coefficient, and how unlike the job is."""

    place: float
    variance: float
    posterior: float
    """Logarithm of the median after the study, which lies between the prior's and `place`."""
    identified: bool
    """The trials have at least halved the prior's variance."""
    unlike: float
    """Variance by which the coefficient differs between the jobs, in variances of its prior."""

    @classmethod
    def of(cls, before: Belief, after: Belief, unlike: float) -> Self | None:
        """Return the evidence in a study's posterior; None if its trials show nothing of the coefficient."""
        prior, posterior = before.spread**-2, max(after.spread, math.sqrt(NOTHING) * before.spread) ** -2
        precision = posterior - prior
        if precision < NOTHING * prior:
            return None
        return cls(
            place=(posterior * math.log(after.median) - prior * math.log(before.median)) / precision,
            variance=1 / precision,
            posterior=math.log(after.median),
            identified=after.spread < IDENTIFIED * before.spread,
            unlike=unlike,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PooledCoefficient:
    """Holds a coefficient's distribution for a job, and the share of its precision that each study gives; the rest is the prior's."""

    belief: Belief
    shares: tuple[float, ...]


def pooled(prior: Belief, studies: Sequence[CoefficientEvidence | None], source: str) -> PooledCoefficient:
    """Return the coefficient of a job by its prior and by what studies of other jobs show of it.

    The median stays between those of the prior and of the studies. No study makes the spread wider than the prior's.
    """
    known = [each for each in studies if each is not None]
    if not known:
        return PooledCoefficient(belief=prior, shares=(0.0,) * len(studies))
    wide = [each.variance + each.unlike * prior.spread**2 for each in known]
    sure = [(each.place, variance) for each, variance in zip(known, wide, strict=True) if each.identified]
    excess = excess_variance([place for place, _ in sure], [variance + ELSEWHERE**2 / 2 for _, variance in sure])
    middle, own = math.log(prior.median), prior.spread**-2
    given = [1 / (variance + excess) for variance in wide]
    precision = own + sum(given)
    log_median = (own * middle + sum(g * each.place for g, each in zip(given, known, strict=True))) / precision
    reached = [middle, *(each.posterior for each in known)]
    log_median = min(max(log_median, min(reached)), max(reached))
    spread = min(math.sqrt(1 / precision + excess + ELSEWHERE**2), prior.spread)
    shares = iter(g / precision for g in given)
    return PooledCoefficient(
        belief=dataclasses.replace(prior, median=math.exp(log_median), spread=spread, source=source),
        shares=tuple(0.0 if each is None else next(shares) for each in studies),
    )


def excess_variance(places: Sequence[float], variances: Sequence[float]) -> float:
    """Return the variance between studies beyond their own, with which their weighted squares are at the median; 0 if they agree."""
    if len(places) < 2:
        return 0.0
    median = float(chdtri(len(places) - 1, 0.5))

    def above(excess: float) -> float:
        weights = [1 / (variance + excess) for variance in variances]
        mean = sum(w * place for w, place in zip(weights, places, strict=True)) / sum(weights)
        return sum(w * (place - mean) ** 2 for w, place in zip(weights, places, strict=True)) - median

    if above(0.0) <= 0:
        return 0.0
    most = len(places) * (max(places) - min(places)) ** 2 / median  # there, every weight is below its share of the median
    return float(brentq(above, 0.0, most))
