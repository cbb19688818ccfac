"""Estimate the arrival rate of large jobs (FlexTrain, section 5.1): the rate of a Poisson process, assumed stationary over a window."""

from collections import deque


class Arrivals:
    """Counts submissions in a sliding window. The caller supplies the time; if it goes backwards, the clock pauses.

    Args:
        window_s: Length of the window in seconds.
        counted_gpus: Jobs count from this number of GPUs on; smaller ones hardly ever cause a reclaim.
        prior_s: Seconds of a supposed earlier observation with one arrival, a Gamma prior of the rate; 0 for none.
    """

    def __init__(self, window_s: float, counted_gpus: int, *, prior_s: float = 0.0) -> None:
        self._window_s, self._counted_gpus, self._prior_s = window_s, counted_gpus, prior_s
        self._times: deque[float] = deque()
        self._begun_s: float | None = None
        self._now_s = 0.0

    def submitted(self, at_s: float, gpus: int) -> None:
        """Record the submission of a job."""
        self._pass(at_s)
        if gpus >= self._counted_gpus:
            self._times.append(self._now_s)

    def rate(self, now_s: float) -> float:
        """Return large jobs per second in the window. While less than a window has been observed, the rate is over the time observed."""
        self._pass(now_s)
        begun_s = self._begun_s if self._begun_s is not None else self._now_s
        seen_s = min(self._window_s, self._now_s - begun_s) + self._prior_s
        return (len(self._times) + (self._prior_s > 0)) / seen_s if seen_s > 0 else 0.0

    def _pass(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s) if self._begun_s is not None else now_s
        self._begun_s = self._now_s if self._begun_s is None else self._begun_s
        while self._times and self._times[0] <= self._now_s - self._window_s:
            self._times.popleft()
