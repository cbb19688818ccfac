"""Detect loss spikes: narrow ones pass by themselves, wide ones require a roll-back (COPUS, appendix E).

Trainers may report a loss only now and then. The steps between report none, and are left out. A run that resumes an earlier checkpoint
takes steps again. What the detector has of them is void.

Notation (the last WINDOW losses that were calm, that is, not high):
    centre     their median
    spread     1.4826 times their median absolute deviation (the standard deviation of a normal distribution); at least LEAST * centre
    high       above centre + HIGH * spread, or not finite; losses fall in training, so the centre lags above them, on the safe side
    wide       high for WIDE reports in a row
    usual      a loss that stays high for WINDOW reports counts as calm from then on
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW, ENOUGH = 50, 20
"""Largest and smallest number of calm losses that define the centre."""
HIGH = 6.0
"""Threshold of a high loss, in spreads above the centre."""
WIDE = 10
"""Consecutive high losses that make a spike wide."""
LEAST = 0.01
"""Minimum spread, as a share of the centre."""
_NORMAL = 1.4826


class LossSpikes:
    """Detects loss spikes, and is updated with each step that reports its loss."""

    def __init__(self) -> None:
        self._calm = deque[tuple[int, float]](maxlen=WINDOW)
        """Step and loss of each."""
        self._began: int | None = None
        self._high = 0

    @property
    def is_wide(self) -> bool:
        """Return True while a wide spike persists."""
        return self._high >= WIDE

    def wide(self, step: int, loss: float | None) -> int | None:
        """Record the loss of a step; return the first step of a spike once, when it becomes wide, else None.

        Args:
            step: Number of the step.
            loss: Its loss; None if it is not finite.
        """
        self._forget_from(step)
        if not self._is_high(loss):
            assert loss is not None
            self._calm.append((step, loss))
            self._began, self._high = None, 0
            return None
        self._began, self._high = step if self._began is None else self._began, self._high + 1
        if self._high == WINDOW:
            self._calm.clear()
        return self._began if self._high == WIDE else None

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the detector as a JSON-serialisable dict."""
        return {"calm": list(self._calm), "began": self._began, "high": self._high}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `snapshot` returned."""
        self._calm.extend((step, loss) for step, loss in state["calm"])
        self._began, self._high = state["began"], state["high"]

    def _forget_from(self, step: int) -> None:
        """Forget the losses of a step and of those after it, which are taken again."""
        while self._calm and self._calm[-1][0] >= step:
            self._calm.pop()
        if self._began is not None and self._began >= step:
            self._began, self._high = None, 0

    def _is_high(self, loss: float | None) -> bool:
        if len(self._calm) < ENOUGH:
            return loss is None
        if loss is None or not math.isfinite(loss):
            return True
        calm = [each for _, each in self._calm]
        centre = statistics.median(calm)
        spread = _NORMAL * statistics.median(abs(each - centre) for each in calm)
        return loss > centre + HIGH * max(spread, LEAST * abs(centre))
