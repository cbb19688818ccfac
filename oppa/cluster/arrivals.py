"""How often large jobs have come lately (FlexTrain, section 5.1): the rate of a Poisson process that is taken for stationary that long."""

from collections import deque


class Arrivals:
    """Submissions within a window that ends now. The clock is the caller's; one that goes back is taken to stand still.

    Args:
        window_s: So long.
        counted_gpus: Of jobs that ask for at least so many GPUs; smaller ones hardly ever make others give theirs back.
    """

    def __init__(self, window_s: float, counted_gpus: int) -> None:
        self._window_s, self._counted_gpus = window_s, counted_gpus
        self._times: deque[float] = deque()
        self._begun_s: float | None = None
        self._now_s = 0.0

    def submitted(self, at_s: float, gpus: int) -> None:
        """A job has come."""
        self._pass(at_s)
        if gpus >= self._counted_gpus:
            self._times.append(self._now_s)

    def rate(self, now_s: float) -> float:
        """Of those in the window, a second; over the time that has been seen, while that is shorter."""
        self._pass(now_s)
        begun_s = self._begun_s if self._begun_s is not None else self._now_s
        seen_s = min(self._window_s, self._now_s - begun_s)
        return len(self._times) / seen_s if seen_s > 0 else 0.0

    def _pass(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s) if self._begun_s is not None else now_s
        self._begun_s = self._now_s if self._begun_s is None else self._begun_s
        while self._times and self._times[0] <= self._now_s - self._window_s:
            self._times.popleft()
