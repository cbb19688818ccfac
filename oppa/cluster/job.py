"""What a scheduler knows of a job: when it comes, how long it takes on the GPUs that it asks for, and how it scales."""

import bisect
import dataclasses
import functools
from collections.abc import Iterable
from typing import Self

from oppa.errors import InputError


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """A number of GPUs that a job can run on, and how much faster it is there than on those that it asks for."""

    gpus: int
    speedup: float


@dataclasses.dataclass(frozen=True)
class ScaleTable:
    """The sizes of an elastic job, in ascending order; the one that it asks for is among them, with a speed-up of 1."""

    sizes: tuple[Scale, ...]

    @classmethod
    def of(cls, gpus: int, speedups: Iterable[tuple[int, float]]) -> Self:
        """From speed-ups over `gpus`, which need not be among them.

        Raises:
            InputError: a size or a speed-up is not positive, or a size stands there twice.
        """
        sizes = {gpus: 1.0}
        for size, speedup in speedups:
            if size < 1 or not 0 < speedup < float("inf"):
                raise InputError(f"a scale table has {size} GPUs with a speed-up of {speedup:g}", hint="both must be positive")
            if size in sizes and size != gpus:
                raise InputError(f"a scale table has {size} GPUs twice", hint="keep one of them")
            sizes[size] = 1.0 if size == gpus else speedup
        return cls(tuple(Scale(size, speedup) for size, speedup in sorted(sizes.items())))

    @functools.cached_property
    def _fastest(self) -> tuple[tuple[int, ...], tuple[Scale, ...]]:
        """Of each size and those below it the fastest; of equals the smallest."""
        best: list[Scale] = []
        for size in self.sizes:
            best.append(size if not best or size.speedup > best[-1].speedup else best[-1])
        return tuple(size.gpus for size in self.sizes), tuple(best)

    def fastest(self, most: int) -> Scale | None:
        """The fastest on at most so many GPUs; None where it cannot run on so few."""
        gpus, best = self._fastest
        at = bisect.bisect_right(gpus, most)
        return best[at - 1] if at else None

    def speedup(self, gpus: int) -> float:
        """On exactly so many GPUs; raises KeyError for a size that is not there."""
        sizes, at = self._fastest[0], bisect.bisect_left(self._fastest[0], gpus)
        if at == len(sizes) or sizes[at] != gpus:
            raise KeyError(gpus)
        return self.sizes[at].speedup


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of a trace."""

    name: str
    arrival_s: float
    duration_s: float
    """On the GPUs that it asks for."""
    gpus: int
    kind: str = ""
    """What it does: `Pretrain`, `Evaluation`, ..."""
    priority: int = 0
    """Larger goes first."""
    table: ScaleTable | None = None
    """Of an elastic job."""
    save_s: float = 0.0
    """It takes to write a checkpoint."""
    start_s: float = 0.0
    """It takes to go on from one: processes, communication groups, reading."""

    @property
    def overhead_s(self) -> float:
        """During which it stands still when its size changes."""
        return self.save_s + self.start_s
