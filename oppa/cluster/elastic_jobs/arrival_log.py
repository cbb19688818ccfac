"""Count recent arrivals in the scheduler's queue. The counts are stored in the spool, so that the next controller continues them.

Jobs that are new at one look at the queue are one arrival, that of the largest. A user's script may submit twenty at once. They end the
time in which nodes are idle only once, and twenty arrivals of a Poisson process would never come together.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oppa.cluster.arrivals import Arrivals
from oppa.cluster.elastic_jobs.spool import ARRIVALS
from oppa.cluster.scheduler import QueueSnapshot
from oppa.regular_file import read_json
from oppa.trials.trial_folder import write_json

PRIOR_S = 600.0
"""Seconds of a supposed earlier observation with one arrival, so that a short one proves neither a quiet nor a busy cluster."""


class ArrivalLog:
    """Counts jobs that other users submit. Jobs queued before start-up are not arrivals.

    Args:
        spool: Folder that stores the counts.
        window_s: Seconds for which an arrival counts.
        counted: Minimum hosts of a job that counts.
        keep: True to store the counts.
        clock: Monotonic time in seconds. Unix time is read once, so that a clock that is set later on changes nothing.
    """

    def __init__(self, spool: Path, window_s: float, counted: int, *, keep: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._window_s, self._keep = spool / ARRIVALS, window_s, keep
        self._arrivals = Arrivals(window_s, counted, prior_s=PRIOR_S)
        self._known: set[str] | None = None
        self._clock, self._begun = clock, (time.time(), clock())
        self._since, self._times = self._now(), list[tuple[float, int]]()
        self._remember()
        self._arrivals.rate(self._since)

    def _now(self) -> float:
        at, ticks = self._begun
        return at + self._clock() - ticks

    def count(self, view: QueueSnapshot) -> None:
        """Count the jobs that have arrived since the last call."""
        now = self._now()
        came = view.others(self._known or ())
        if self._known is not None:
            self._times = [(at, nodes) for at, nodes in self._times if at > now - self._window_s]
            if came:
                largest = max(job.nodes for job in came)
                self._times.append((now, largest))
                self._arrivals.submitted(now, largest)
        present = {job.submission for job in view.others(())}
        changed = present != self._known
        self._known = present
        if changed and self._keep:
            write_json(self._path, {"since": self._since, "known": sorted(present), "came": self._times})

    def rate(self) -> float:
        """Return the arrivals of large jobs per second."""
        return self._arrivals.rate(self._now())

    def _remember(self) -> None:
        """Restore the counts of an earlier controller, unless the file is invalid or the clock went back since."""
        try:
            values: dict[str, Any] = read_json(self._path)
            since, known = float(values["since"]), {str(number) for number in values["known"]}
            times: Sequence[tuple[float, int]] = [(float(at), int(nodes)) for at, nodes in values["came"]]
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return
        if not all(0 <= at <= self._now() for at in (since, *(at for at, _ in times))):
            return
        self._since, self._known, self._times = since, known, list(times)
        self._arrivals.rate(since)
        for at, nodes in times:
            self._arrivals.submitted(at, nodes)
