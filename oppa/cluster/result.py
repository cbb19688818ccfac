"""Compute the results of a simulated trace: start and end of each job, idle GPUs over time, and the effect of scaling."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.cluster.job import TraceJob
from oppa.cluster.scaling import ScaleDecision


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """Describes one job that has ended."""

    job: TraceJob
    started_s: float
    ended_s: float
    gpu_s: float
    """GPU seconds that the job held."""
    changes: int
    """Number of changes of size."""

    @property
    def queue_s(self) -> float:
        """Return the seconds from arrival to the first start."""
        return self.started_s - self.job.arrival_s

    @property
    def completion_s(self) -> float:
        """Return the seconds from arrival to end."""
        return self.ended_s - self.job.arrival_s


class Usage:
    """Records idle, failed and spare GPUs over time.

    Args:
        gpus: Number of GPUs of the cluster.
    """

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self._ends_s: list[float] = []
        self._idle: list[int] = []
        self._down: list[int] = []
        self._spare: list[int] = []

    def stay(self, until_s: float, *, idle: int, down: int, spare: int) -> None:
        """Record the numbers of GPUs until `until_s`.

        Args:
            until_s: End of the interval, in seconds.
            idle: Free GPUs of nodes that are up.
            down: GPUs of failed nodes.
            spare: GPUs that elastic jobs held in addition to their request.
        """
        if self._ends_s and (self._idle[-1], self._down[-1], self._spare[-1]) == (idle, down, spare):
            self._ends_s[-1] = until_s
            return
        self._ends_s.append(until_s)
        self._idle.append(idle)
        self._down.append(down)
        self._spare.append(spare)

    def steps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the ends of intervals in seconds, and the number of idle GPUs in each; both of shape (n,)."""
        return np.array(self._ends_s), np.array(self._idle, dtype=np.int64)

    def share(self, until_s: float) -> float:
        """Return the share of GPU time until `until_s` that jobs held: the utilisation of the cluster."""
        unheld_gpu_s = self._sum(self._idle, until_s) + self._sum(self._down, until_s)
        return 1 - unheld_gpu_s / (self.gpus * until_s) if until_s > 0 else 0.0

    def spare_gpu_s(self, until_s: float) -> float:
        """Return the GPU seconds until `until_s` that elastic jobs held in addition to their request."""
        return self._sum(self._spare, until_s)

    def _sum(self, values: Sequence[int], until_s: float) -> float:
        ends = np.minimum(np.array(self._ends_s), until_s)
        return float(np.dot(np.diff(ends, prepend=0.0), np.array(values, dtype=np.float64))) if len(ends) else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Holds the results of one simulation."""

    done: Sequence[EndedJob]
    """Jobs in the order of their ends."""
    scalings: Sequence[tuple[float, ScaleDecision]]
    """Time in seconds, and change of size."""
    usage: Usage

    def completion_s(self, names: Collection[str]) -> float:
        """Return the mean seconds from arrival to end of these jobs."""
        return _mean([each.completion_s for each in self.done if each.job.name in names])

    def queue_s(self, besides: Collection[str]) -> float:
        """Return the mean seconds in the queue of all other jobs."""
        return _mean([each.queue_s for each in self.done if each.job.name not in besides])


def _mean(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return float(np.mean(values)) if values else 0.0
