"""Define the actions of a learned policy on a worker's batch (DYNAMIX, section IV-C)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from oppa.errors import InputError

STEPS = (-100, -25, 0, 25, 100)
"""Changes of a local batch in the paper, in samples."""
LEAST, MOST = 32, 1024
"""Bounds of a local batch in the paper, in samples."""
TYPICAL = 256
"""Local batch that these values suit, in samples; `Actions.scaled` scales them for others."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Defines the possible changes of a local batch and its bounds, in samples. An action is the number of a step."""

    steps: tuple[int, ...] = STEPS
    least: int = LEAST
    most: int = MOST

    def __post_init__(self) -> None:
        if 0 not in self.steps or self.least < 1 or self.most <= self.least:
            message = f"`steps = {list(self.steps)}`, `least = {self.least}`, `most = {self.most}` give no actions"
            raise InputError(message, hint="include the step 0, and give a `least` of at least 1 and a larger `most`")

    @classmethod
    def scaled(cls, local_batch: int) -> Self:
        """Scale the paper's steps and bounds to a job's initial local batch."""
        share = local_batch / TYPICAL
        steps = tuple(int(np.sign(step)) * max(1, round(abs(step) * share)) if step else 0 for step in STEPS)
        return cls(steps=steps, least=max(1, round(LEAST * share)), most=max(2, round(MOST * share)))

    def after(self, local_batches: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
        """Return the next local batches (Algorithm 1, line 25).

        Args:
            local_batches: Samples of each worker.
            chosen: Number of a step for each worker.
        """
        return tuple(self._bounded(batch + self.steps[number]) for batch, number in zip(local_batches, chosen, strict=True))

    def chosen(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Return each worker's step that leads closest from `before` to `after`; the smallest one wins a tie."""
        found = []
        for early, late in zip(before, after, strict=True):
            results = self._results(early)
            found.append(min(range(len(self.steps)), key=lambda number: (abs(results[number] - late), abs(self.steps[number]))))
        return found

    def alike(self, local_batch: int, number: int) -> int:
        """Return the number of steps that lead to the same batch as step `number`; bounds can make several equal."""
        results = self._results(local_batch)
        return results.count(results[number])

    def _results(self, local_batch: int) -> list[int]:
        """Return the resulting local batch of each step."""
        return [self._bounded(local_batch + step) for step in self.steps]

    def _bounded(self, size: int) -> int:
        return min(max(size, self.least), self.most)

    def size(self, local_batches: Sequence[int]) -> NDArray[np.float64]:
        """Return the position of each batch between the bounds, from 0 to 1 on a logarithmic scale, shape (n,)."""
        return np.asarray(np.log2(np.asarray(local_batches) / self.least) / np.log2(self.most / self.least))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Invert `dataclasses.asdict`, after which JSON turns the steps into a list."""
        return cls(**{**values, "steps": tuple(values["steps"])})
