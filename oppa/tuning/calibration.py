"""Calibrate prediction intervals: record how often they held the measured value, and widen them after misses."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from oppa.study import Trial
from oppa.study.records import SEARCH

MISSES = 0.1
RATE = 0.35
"""Step size of the adaptation: a miss widens intervals by 37%, a hit narrows them by 3.4%."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """States the accuracy of a study's predictions of throughput."""

    inside: int
    """Number of trials whose measured throughput lay in the predicted 90% interval."""
    measured: int
    typical_error: float
    """Median relative distance of the measured from the predicted throughput; 0.06 is 6% off."""


def track_record(trials: Sequence[Trial]) -> TrackRecord | None:
    """Return the record of the search trials with a prediction and a measured throughput; None if there are none."""
    pairs = [(t.prediction, t.steps_per_s) for t in trials if t.purpose == SEARCH and t.prediction and t.steps_per_s]
    if not pairs:
        return None
    distances = [abs(math.log(measured / predicted.steps_per_s)) for predicted, measured in pairs]
    return TrackRecord(
        inside=sum(predicted.covers(measured) for predicted, measured in pairs),
        measured=len(pairs),
        typical_error=math.expm1(statistics.median(distances)),
    )


def widening(hits: Iterable[bool]) -> float:
    """Return the factor by which to widen the next interval, at least 1.

    Implements adaptive conformal inference (Gibbs & Candes 2021, eq. 2) on the logarithm of the width. In the long run the share of
    misses is MISSES, whatever the model predicts. The model alone misses too often, since a search measures where it is most optimistic.

    Args:
        hits: One flag per earlier interval, in order: true if it held the measured value.
    """
    log_factor = 0.0
    for hit in hits:
        log_factor = max(0.0, log_factor + RATE * ((0.0 if hit else 1.0) - MISSES))
    return math.exp(log_factor)
