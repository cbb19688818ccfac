"""Spikes of the loss: narrow ones pass by themselves, wide ones call for a roll-back (COPUS, appendix E).

Notation (of the last WINDOW losses that were calm):
    centre     their median
    spread     1.4826 times their median distance from it: the standard deviation, were they normal; at least LEAST of the centre
    high       above centre + HIGH * spread, or not finite; losses fall in training, so that the centre lags behind, on the safe side
    wide       high for WIDE steps in a row
    usual      what stays high for WINDOW steps is what is calm from then on
"""

import math
import statistics
from collections import deque

WINDOW, ENOUGH = 50, 20
"""Losses that say what is calm: at most, and at least."""
HIGH = 6.0
WIDE = 10
LEAST = 0.01
_NORMAL = 1.4826


class Spikes:
    """Watches a loss, step by step."""

    def __init__(self) -> None:
        self._calm = deque[float](maxlen=WINDOW)
        self._began: int | None = None
        self._high = 0

    def wide(self, step: int, loss: float | None) -> int | None:
        """Take in a step's loss; the step that a spike began with, once, when it has become wide. None stands for what is not finite."""
        if not self._is_high(loss):
            assert loss is not None
            self._calm.append(loss)
            self._began, self._high = None, 0
            return None
        self._began, self._high = step if self._began is None else self._began, self._high + 1
        if self._high == WINDOW:
            self._calm.clear()
        return self._began if self._high == WIDE else None

    def _is_high(self, loss: float | None) -> bool:
        if len(self._calm) < ENOUGH:
            return loss is None
        if loss is None or not math.isfinite(loss):
            return True
        centre = statistics.median(self._calm)
        spread = _NORMAL * statistics.median(abs(each - centre) for each in self._calm)
        return loss > centre + HIGH * max(spread, LEAST * abs(centre))
