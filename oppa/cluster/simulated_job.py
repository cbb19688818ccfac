"""Hold the state of one job in the simulation: remaining work, size and speed, and the GPUs that it holds."""

import copy
import math

from oppa.cluster.job import TraceJob
from oppa.cluster.nodes import Holding


class SimulatedJob:
    """Holds the state of one job in the simulation."""

    __slots__ = ("changes", "end", "gpu_s", "gpus", "holding", "job", "left_s", "number", "ready_s", "seen_s", "speed", "started_s")

    def __init__(self, number: int, job: TraceJob) -> None:
        self.number, self.job = number, job
        self.left_s = job.duration_s
        """Remaining work, in seconds on the requested GPUs."""
        self.speed, self.gpus, self.holding = 0.0, 0, Holding()
        self.seen_s = self.ready_s = 0.0
        """Time up to which work is counted, and time at which the job resumes work."""
        self.end = 0
        """Number of the event that ends the job; any other end event is out of date."""
        self.started_s, self.gpu_s, self.changes = math.nan, 0.0, 0

    def advance(self, now_s: float) -> None:
        """Count the work done until now."""
        self.left_s = max(0.0, self.left_s - self.speed * max(0.0, now_s - max(self.seen_s, self.ready_s)))
        self.gpu_s += self.gpus * (now_s - self.seen_s)
        self.seen_s = now_s

    def resize(self, gpus: int, now_s: float) -> None:
        """Change the size now; the job stands still for the overhead of a change."""
        assert self.job.table is not None
        self.advance(now_s)
        self.gpus, self.speed = gpus, self.job.table.speedup(gpus)
        self.ready_s, self.changes = now_s + self.job.overhead_s, self.changes + 1

    def end_on(self, gpus: int, now_s: float) -> float:
        """Return the time at which the job would end, if its size changed now."""
        changed = copy.copy(self)
        changed.resize(gpus, now_s)
        return changed.end_s

    @property
    def restart_s(self) -> float:
        """Return the seconds from the next start until the job works: none at its first start."""
        return 0.0 if math.isnan(self.started_s) else self.job.start_s

    @property
    def end_s(self) -> float:
        """Return the time at which the job ends, if its size stays the same."""
        return max(self.seen_s, self.ready_s) + self.left_s / self.speed

    @property
    def spare(self) -> int:
        """Return the number of GPUs in addition to the request."""
        return max(0, self.gpus - self.job.gpus)
