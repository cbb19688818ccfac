"""Load the micro-batches of torchtitan's steps by the numbers of their samples, so that any layout goes on where another one stopped."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader  # type: ignore[import-not-found,unused-ignore]
from torchtitan.components.loss import IGNORE_INDEX  # type: ignore[import-not-found,unused-ignore]

from oppa_client.loop.samples import SampleOrder, StepBatches
from oppa_client.plan import Plan


class SampleLoader(BaseDataLoader):  # type: ignore[misc,unused-ignore]
    """Yields the micro-batches of the steps that `begin` names; its state is the number of samples that are taken.

    Args:
        config: Its configuration, which states nothing.
        dp_world_size: Replicas.
        dp_rank: This replica.
        others: What torchtitan gives to loaders that divide a stream.
    """

    @dataclasses.dataclass(kw_only=True, slots=True)  # type: ignore[call-overload,unused-ignore]
    class Config(BaseDataLoader.Config):  # type: ignore[misc,unused-ignore]
        """Builds a loader; the data are no part of a configuration."""

    order: SampleOrder
    """Order of the samples."""

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **others: Any) -> None:
        self.replicas, self.replica = dp_world_size, dp_rank
        self.samples = 0
        """Samples that all replicas have taken."""
        self._coming: collections.deque[Any] = collections.deque()

    def take_over(self, data: Any, seed: int | None, **options: Any) -> None:
        """Load the elements of a data set from now on.

        Args:
            data: Data set with a length.
            seed: Seed of the samples' order; None takes them as they come.
            options: Further arguments of the `DataLoader`.
        """
        self.order = SampleOrder(len(data), seed)
        self._batches = StepBatches(self.order, dataset=data, **options)

    def begin(self, plan: Plan, usual: Plan) -> list[int]:
        """Load a step (`StepBatches.load`), and return the tokens with a label in each micro-batch; an empty one has none."""
        sizes, loaded = self._batches.load(plan, self.replica, self.replicas, usual)
        for size, (inputs, labels) in zip(sizes, loaded):
            self._coming.append((inputs, labels if size else torch.full_like(labels, IGNORE_INDEX)))
        self.samples = plan.progress + plan.global_batch
        return [int((labels != IGNORE_INDEX).sum()) for _, labels in self._coming]

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._coming.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is the same on all ranks."""
        return {"samples": self.samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the samples of a state."""
        self.samples = state_dict["samples"]
