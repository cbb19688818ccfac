"""What came of a simulated trace: when each job began and ended, what was idle meanwhile, and how much better than without scaling."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.cluster.decisions import Scaling
from oppa.cluster.job import Job


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One job."""

    job: Job
    number: int
    """In the order of arrivals."""
    started_s: float
    ended_s: float
    gpu_s: float
    changes: int
    """Of its size."""

    @property
    def queue_s(self) -> float:
        """Until it first began."""
        return self.started_s - self.job.arrival_s

    @property
    def completion_s(self) -> float:
        """From its arrival to its end."""
        return self.ended_s - self.job.arrival_s


class Usage:
    """GPUs over time.

    Args:
        gpus: Of the cluster.
    """

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self._ends_s: list[float] = []
        self._idle: list[int] = []
        self._spare: list[int] = []

    def stay(self, until_s: float, idle: int, spare: int) -> None:
        """Until then so many were idle, and so many held by elastic jobs beyond what they asked for."""
        if self._ends_s and self._idle[-1] == idle and self._spare[-1] == spare:
            self._ends_s[-1] = until_s
            return
        self._ends_s.append(until_s)
        self._idle.append(idle)
        self._spare.append(spare)

    def steps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Ends of intervals, and GPUs that were idle in each; shapes (n,)."""
        return np.array(self._ends_s), np.array(self._idle, dtype=np.int64)

    def share(self, until_s: float) -> float:
        """Of GPU time until then that was held: the cluster's utilisation."""
        return 1 - self._sum(self._idle, until_s) / (self.gpus * until_s) if until_s > 0 else 0.0

    def spare_gpu_s(self, until_s: float) -> float:
        """Held by elastic jobs beyond what they asked for."""
        return self._sum(self._spare, until_s)

    def _sum(self, values: Sequence[int], until_s: float) -> float:
        ends = np.minimum(np.array(self._ends_s), until_s)
        return float(np.dot(np.diff(ends, prepend=0.0), np.array(values, dtype=np.float64))) if len(ends) else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All of it."""

    done: Sequence[Done]
    """In the order in which they ended."""
    scalings: Sequence[tuple[float, Scaling]]
    """When, and what."""
    usage: Usage

    def completion_s(self, names: Collection[str]) -> float:
        """From arrival to end, the mean of these jobs."""
        return _mean([each.completion_s for each in self.done if each.job.name in names])

    def queue_s(self, besides: Collection[str]) -> float:
        """In the queue, the mean of all but these."""
        return _mean([each.queue_s for each in self.done if each.job.name not in besides])


def _mean(values: Sequence[float]) -> float:
    """0 of nothing."""
    return float(np.mean(values)) if values else 0.0
