"""Detect that this process was frozen, and all processes of its trial with it, while the monotonic clock ran on.

`scontrol suspend`, a freezer of control groups and `docker pause` do this. No process of the trial hangs, and no host is silent.
"""

import time
from collections.abc import Callable

FREEZE_S = 5.0
"""Seconds between two looks, many of which are taken in a second, that only a freeze explains."""


class FreezeDetector:
    """Measures the seconds for which this process was frozen, from look to look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at: float | None = None

    def frozen_s(self) -> float:
        """Return the seconds since the last look if this process was frozen, else 0; also 0 at the first look."""
        last, self._looked_at = self._looked_at, self._clock()
        gap_s = 0.0 if last is None else self._looked_at - last
        return gap_s if gap_s > FREEZE_S else 0.0
