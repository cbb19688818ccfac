"""A job as the scheduler sees it: its arrival, its duration on the requested GPUs, and how it scales."""

import bisect
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Self

from oppa.cluster.nodes import Nodes
from oppa.errors import InputError

LONGEST_S = 1e9
"""Upper limit of a job's arrival and duration, in seconds: thirty years."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobScale:
    """Holds a number of GPUs that a job can run on, and its speed-up over the requested number."""

    gpus: int
    speedup: float


@dataclasses.dataclass(frozen=True)
class ScaleTable:
    """Lists the sizes of an elastic job in ascending order. The requested size is one of them, with a speed-up of 1."""

    sizes: tuple[JobScale, ...]

    @classmethod
    def of(cls, gpus: int, speedups: Iterable[tuple[int, float]]) -> Self:
        """Build a table from (size, speed-up over `gpus`) pairs, which need not include `gpus`.

        Raises:
            InputError: a size or a speed-up is not positive, or a size occurs twice.
        """
        sizes = {gpus: 1.0}
        for size, speedup in speedups:
            if size < 1 or not 0 < speedup < float("inf"):
                raise InputError(f"a scale table has {size} GPUs with a speed-up of {speedup:g}", hint="make both positive")
            if size in sizes and size != gpus:
                raise InputError(f"a scale table has {size} GPUs twice", hint="keep one of the entries")
            sizes[size] = 1.0 if size == gpus else speedup
        return cls(tuple(JobScale(size, speedup) for size, speedup in sorted(sizes.items())))

    @functools.cached_property
    def _fastest(self) -> tuple[tuple[int, ...], tuple[JobScale, ...]]:
        """Return all sizes and, for each, the fastest size up to it; of equally fast sizes, the smallest."""
        best: list[JobScale] = []
        for size in self.sizes:
            best.append(size if not best or size.speedup > best[-1].speedup else best[-1])
        return tuple(size.gpus for size in self.sizes), tuple(best)

    def fastest(self, most: int) -> JobScale | None:
        """Return the fastest size of at most `most` GPUs; None if all sizes are larger."""
        gpus, best = self._fastest
        at = bisect.bisect_right(gpus, most)
        return best[at - 1] if at else None

    def up_to(self, most: int) -> Self:
        """Return the table without larger sizes than `most`."""
        return type(self)(tuple(size for size in self.sizes if size.gpus <= most))

    def speedup(self, gpus: int) -> float:
        """Return the speed-up of exactly this size; raises KeyError if the table does not have it."""
        sizes, at = self._fastest[0], bisect.bisect_left(self._fastest[0], gpus)
        if at == len(sizes) or sizes[at] != gpus:
            raise KeyError(gpus)
        return self.sizes[at].speedup


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """Describes one job of a trace."""

    name: str
    arrival_s: float
    duration_s: float
    """Seconds on the requested GPUs."""
    gpus: int
    """Requested GPUs."""
    kind: str = ""
    """Type of the job: `Pretrain`, `Evaluation`, ..."""
    priority: int = 0
    """Jobs with a larger value start first."""
    table: ScaleTable | None = None
    """Sizes of an elastic job; None if the job is not elastic."""
    save_s: float = 0.0
    """Seconds to write a checkpoint."""
    start_s: float = 0.0
    """Seconds to resume from a checkpoint: start processes, create communication groups, read."""

    @property
    def overhead_s(self) -> float:
        """Return the seconds for which the job pauses when its size changes."""
        return self.save_s + self.start_s


def require_possible(jobs: Sequence[TraceJob], nodes: Nodes) -> None:
    """Refuse a trace that no scheduler could run.

    Raises:
        InputError: two jobs share a name; or a job has an impossible arrival, duration or number of GPUs, or sizes larger than the cluster.
    """
    names = set[str]()
    for job in jobs:
        if job.name in names:
            raise InputError(f"two jobs of the trace have the name `{job.name}`", hint="give each job its own name, or keep one of them")
        names.add(job.name)
        if not 0 <= job.duration_s <= LONGEST_S or not 0 <= job.arrival_s <= LONGEST_S:
            hint = f"give both from 0 to {LONGEST_S:g}"
            raise InputError(f"job `{job.name}` arrives at {job.arrival_s:g} s and takes {job.duration_s:g} s", hint=hint)
        if not 1 <= job.gpus <= nodes.all:
            raise InputError(
                f"job `{job.name}` requests {job.gpus} GPUs, but the cluster has {nodes.all}", hint="remove the job, or increase --gpus"
            )
        if job.table is not None and job.table.sizes[-1].gpus > nodes.all:
            most = job.table.sizes[-1].gpus
            raise InputError(
                f"the scale table of job `{job.name}` goes up to {most} GPUs, but the cluster has {nodes.all}",
                hint="shorten the table, or increase --gpus",
            )
