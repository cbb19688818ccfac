"""Load the samples of a run under oppa: an order that depends on neither batch nor ranks, and a loader that follows the plan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from oppa_client.loop.checkpoints import seed_of
from oppa_client.plan import Plan
from oppa_client.run_files import ContractError


@dataclasses.dataclass(frozen=True)
class SampleOrder:
    """Maps the numbers of samples to elements of a data set; the order of each epoch is that of Accelerate's seeded sampler.

    Args:
        size: Elements of the data set.
        seed: Seed of the first epoch's order; None takes the elements as they come.
    """

    size: int
    seed: int | None

    def of(self, numbers: range) -> list[int]:
        """Return the elements that samples are."""
        return [int(_epoch_order(self.size, self.seed, number // self.size)[number % self.size]) for number in numbers]


@functools.lru_cache(maxsize=2)
def _epoch_order(size: int, seed: int | None, epoch: int) -> torch.Tensor | range:
    return range(size) if seed is None else torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch))


class StepBatches:
    """Loads the micro-batches of one step at a time; workers load those of the next step while this one is computed.

    The next step's micro-batches are those of the same plan. If the plan changes, they are loaded anew.

    Args:
        order: Order of the samples.
        options: Arguments of the `DataLoader`, whose workers stay from one step to the next.

    Raises:
        ContractError: the data set is a stream, whose elements have no numbers.
    """

    def __init__(self, order: SampleOrder, **options: Any) -> None:
        if isinstance(options["dataset"], IterableDataset):
            kind = type(options["dataset"]).__name__
            raise ContractError(f"`{kind}` is an `IterableDataset`, whose elements have no numbers: give a data set with `__getitem__`")
        self.order = order
        self.elements: list[list[int]] = []
        """Elements of each micro-batch that is loaded now; the loader reads them as its batch sampler."""
        # A generator of its own: the loader draws a seed for each step, and dropout must not depend on it.
        options = {"persistent_workers": options.get("num_workers", 0) > 0, **options}
        self.loader = DataLoader(**options, batch_sampler=self, generator=torch.Generator())
        self._ahead: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def load(self, plan: Plan, replica: int, replicas: int, usual: Plan) -> tuple[list[int], list[Any]]:
        """Return the size of each micro-batch of a replica, and its inputs; an empty one has the inputs of another sample.

        Args:
            plan: Plan that states the micro-batches.
            replica: Number of the replica.
            replicas: Number of the data-parallel replicas.
            usual: Plan that states those of the next step; it differs from `plan` if that holds for a measured step alone.
        """
        # Workers draw other random numbers on each replica, and after each restart; ranks of one replica load the same inputs.
        self.loader.generator.manual_seed(seed_of(self.order.seed or 0, plan.progress, replica))
        parts = plan.micro_batches(replica, replicas)
        elements = self._elements(plan, parts)
        ahead, self._ahead = self._ahead, None
        inputs = list(ahead if ahead is not None and elements == self.elements else self._begin(elements))
        if self.loader.num_workers:
            following = dataclasses.replace(usual, progress=usual.progress + usual.global_batch)
            self._ahead = self._begin(self._elements(following, following.micro_batches(replica, replicas)))
        return [len(part) for part in parts], inputs

    def _begin(self, elements: list[list[int]]) -> Iterator[Any]:
        self.elements = elements
        return iter(self.loader)

    def _elements(self, plan: Plan, parts: list[range]) -> list[list[int]]:
        """Return the elements of micro-batches; an empty one has the first sample of the step."""
        return [self.order.of(part if len(part) else plan.samples[:1]) for part in parts]
