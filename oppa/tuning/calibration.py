"""Honest intervals: how often the truth lay where it was expected, and intervals that widen when it does not."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from oppa.study import Trial
from oppa.study.records import SEARCH

MISSES = 0.1
RATE = 0.35
"""How fast intervals follow: a miss widens them by 37%, a hit narrows them by 3.4%."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """How a study's predictions of throughput fared."""

    inside: int
    """Trials whose measured throughput lay in the 90% interval that was predicted."""
    measured: int
    typical_error: float
    """Median of the distances of the measured from the predicted, as shares: 0.06 is 6% off."""


def track_record(trials: Sequence[Trial]) -> TrackRecord | None:
    """Of the search trials with a prediction and a measured throughput; None where there is none."""
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
    """The factor for the next interval, given which of the earlier ones held the truth, in order; never below 1.

    Adaptive conformal inference (Gibbs & Candes 2021, eq. 2) on the logarithm of the width: in the long run the share of misses is
    MISSES, whatever the model believes. A search asks where it is most optimistic, so that its model alone is wrong too often.
    """
    log_factor = 0.0
    for hit in hits:
        log_factor = max(0.0, log_factor + RATE * ((0.0 if hit else 1.0) - MISSES))
    return math.exp(log_factor)
