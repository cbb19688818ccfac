"""Log an event that may come thousands of times a second: at most one line per kind of event and period."""

import logging
import time
from collections import Counter

PERIOD_S = 10.0
"""Minimum seconds between two lines about the same kind of event."""

_log = logging.getLogger(__name__)


class BurstLog:
    """Logs the first event of a kind at once, and counts those that follow within the period."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}
        self._silent = Counter[str]()

    def warning(self, kind: str, text: str, *, error: BaseException | None = None) -> None:
        """Log a line unless one of its kind was logged within the period.

        Args:
            kind: Kind of the event.
            text: What happened.
            error: Exception whose traceback is logged, for a mistake in oppa itself.
        """
        now = time.monotonic()
        if now - self._logged_s.get(kind, -PERIOD_S) < PERIOD_S:
            self._silent[kind] += 1
            return
        self._logged_s[kind] = now
        silent = self._silent.pop(kind, 0)
        _log.warning("%s%s", text, f" ({silent:,} more since the last line)" if silent else "", exc_info=error)
