"""State how much memory the programs of a job may report, and how much may be predicted for them.

A device holds more than its program reports: CUDA's context, communication buffers and fragments. The predictions of some frameworks count
a part of that, so they may fill a larger share of the device (`usable_share` of `priors/frameworks`).
"""

import dataclasses
import math
from typing import Self

from oppa.cost.beliefs import framework_of
from oppa.cost.hardware import whole_memory_bytes
from oppa.problem.cluster import USABLE_SHARE, usable_of
from oppa.problem.problem import Problem


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Holds limits of one device's memory, in bytes."""

    stated: int
    """The job's own limit."""
    reported: int
    """The most that programs can report: the job's limit, or `usable_of` the device if that is less."""
    predicted: int
    """The prediction for programs that report so much."""
    is_certain: bool
    """Programs report all that they need, as on CPUs."""

    @property
    def log_excess(self) -> float:
        """Return the logarithm of the largest prediction over the stated limit."""
        return math.log(self.predicted / self.stated)

    @classmethod
    def plain(cls, limit_bytes: int) -> Self:
        """Return limits for programs that report all that they need, and all that is predicted."""
        return cls(stated=limit_bytes, reported=limit_bytes, predicted=limit_bytes, is_certain=True)


def memory_limits(problem: Problem) -> MemoryLimits:
    """Return the limits of a job. A device that the catalogue does not have is limited by the job alone."""
    cluster, stated = problem.cluster, problem.cluster.usable_bytes
    if not cluster.on_cuda:
        return MemoryLimits.plain(stated)
    whole = whole_memory_bytes(cluster)
    reported = stated if whole is None else min(stated, usable_of(whole))
    predicted = round(reported * framework_of(problem).usable_share / USABLE_SHARE)
    return MemoryLimits(stated=stated, reported=reported, predicted=predicted, is_certain=False)
