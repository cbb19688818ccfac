"""What a learned policy may do with a worker's batch (DYNAMIX, section IV-C)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from oppa.errors import InputError

STEPS = (-100, -25, 0, 25, 100)
"""Samples, as the paper has them, in batches from 32 to 1,024."""
LEAST, MOST = 32, 1024
TYPICAL = 256
"""A local batch for which these are made; others scale them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Steps of a local batch, and its bounds, in samples."""

    steps: tuple[int, ...] = STEPS
    least: int = LEAST
    most: int = MOST

    def __post_init__(self) -> None:
        if 0 not in self.steps or self.least < 1 or self.most <= self.least:
            message = f"`steps = {list(self.steps)}`, `least = {self.least}`, `most = {self.most}`"
            raise InputError(message, hint="one step must be 0, and a batch of at least 1 have room above it")

    @classmethod
    def scaled(cls, local_batch: int) -> Self:
        """For jobs that begin with another local batch than the paper's; both bounds and steps as multiples of it."""
        share = local_batch / TYPICAL
        steps = tuple(int(np.sign(step)) * max(1, round(abs(step) * share)) if step else 0 for step in STEPS)
        return cls(steps=steps, least=max(1, round(LEAST * share)), most=max(2, round(MOST * share)))

    def after(self, local_batches: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
        """The next local batches (Algorithm 1, line 25).

        Args:
            chosen: For each worker, the number of a step.
        """
        return tuple(self._bounded(batch + self.steps[number]) for batch, number in zip(local_batches, chosen, strict=True))

    def chosen(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The steps that come closest to leading from one to the other; of those that bounds make equal, the smallest."""
        found = []
        for early, late in zip(before, after, strict=True):
            results = self._results(early)
            found.append(min(range(len(self.steps)), key=lambda number: (abs(results[number] - late), abs(self.steps[number]))))
        return found

    def alike(self, local_batch: int, number: int) -> int:
        """How many steps lead from a batch to where this one does."""
        results = self._results(local_batch)
        return results.count(results[number])

    def _results(self, local_batch: int) -> list[int]:
        """Where each step leads to."""
        return [self._bounded(local_batch + step) for step in self.steps]

    def _bounded(self, size: int) -> int:
        return min(max(size, self.least), self.most)

    def size(self, local_batches: Sequence[int]) -> NDArray[np.float64]:
        """Where between the bounds, from 0 to 1, in doublings."""
        return np.asarray(np.log2(np.asarray(local_batches) / self.least) / np.log2(self.most / self.least))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{**values, "steps": tuple(values["steps"])})
