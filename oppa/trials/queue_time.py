"""Measure how long a launcher waits for devices that it does not hold. Another trial has them, or a job is in the queue."""

import contextlib
import time
from collections.abc import Iterator


class QueueTime:
    """Adds up the waits of a launcher, the present one included."""

    def __init__(self) -> None:
        self._ended_s = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Return the seconds of all waits so far."""
        return self._ended_s + (0.0 if self._since is None else time.monotonic() - self._since)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the context."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._ended_s, self._since = self.seconds, None
