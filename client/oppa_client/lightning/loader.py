"""Yield the micro-batches of an epoch, step by step under the plan of a run."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from oppa_client.loop.loaders import planned
from oppa_client.loop.position import Position
from oppa_client.loop.samples import SampleOrder, StepBatches
from oppa_client.plan import Plan
from oppa_client.run import Run

ENDLESS = 2**62
"""Samples of a training without an end."""
IN_TWO_EVERY = 8
"""Interval of the measured steps that would be a single micro-batch, unless the plan states it."""


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Describes a micro-batch that Lightning has fetched."""

    plan: Plan
    sizes: list[int]
    """Samples of each micro-batch of this rank in the step."""
    index: int

    @property
    def is_first(self) -> bool:
        """Return True if the step begins with it."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Return True if the step ends with it."""
        return self.index == len(self.sizes) - 1

    def weight(self, replicas: int) -> float:
        """Return the factor of its mean loss with which each sample of the step counts alike; it is 0 if it is empty."""
        return self.sizes[self.index] * replicas / self.plan.global_batch


class PlannedLoader:
    """Iterates over the micro-batches of an epoch, which ends with the step that passes its last sample.

    Lightning fetches one micro-batch ahead to see which one is the last of an epoch. So the run has to be opened with a `lead` of 1.

    Args:
        run: The run.
        trainer: Its ranks share the samples.
        seed: Seed of the order of samples.
        steps: Length of the training in steps of the reference batch, unless the run states it; -1: without an end.
        epochs: Its length in epochs, if that is shorter; -1: without an end.
    """

    batches: StepBatches | None = None
    """Loads the samples of a step, once the data are known."""
    position: Position
    """How far the run is, once the data are known."""
    is_measured = False
    """True if gradients are measured; it is known from the second step on, because the first one is loaded before."""

    def __init__(self, run: Run, trainer: Any, *, seed: int, steps: int, epochs: int) -> None:
        self._run, self._trainer, self.seed, self._steps, self._epochs = run, trainer, seed, steps, epochs
        self.fetched: collections.deque[MicroBatch] = collections.deque()
        """Micro-batches that Lightning has fetched and not begun to train on."""

    def take_over(self, loader: Any) -> PlannedLoader:
        """Load the data of a `DataLoader` from now on; raises ContractError if their order cannot be found again."""
        self.batches, run = planned(loader, self.seed), self._run
        limits = [self._epochs * self.order.size, self._steps * run.reference_batch]
        self.position = Position.of(run, min((own for own in limits if own >= 0), default=ENDLESS))
        return self

    @property
    def order(self) -> SampleOrder:
        """Return the order of the samples."""
        assert self.batches is not None
        return self.batches.order

    def __iter__(self) -> Iterator[Any]:
        assert self.batches is not None
        self.fetched.clear()
        plan, size = self._run.plan, self.order.size
        end = min(self.position.total, (plan.progress // size + 1) * size)
        while plan.global_batch and plan.progress < end:
            plan, loaded = self._chosen(plan, self._trainer.world_size)
            sizes, inputs = self.batches.load(loaded, self._trainer.global_rank, self._trainer.world_size, plan)
            for index, each in enumerate(inputs):
                self.fetched.append(MicroBatch(plan, sizes, index))
                yield each
            plan = self._run.following(plan)

    def _chosen(self, plan: Plan, replicas: int) -> tuple[Plan, Plan]:
        """Return the plan of a step, and the one that states its micro-batches, because a step is loaded before it begins.

        If it would be a single micro-batch, which is measured in two, the plan states which steps are measured.
        """
        if not self.is_measured or plan.in_two(replicas) is plan:
            return plan, plan
        every = IN_TWO_EVERY if plan.statistics_every is None else plan.statistics_every
        is_due = every > 0 and plan.step % every == 0
        return dataclasses.replace(plan, statistics_every=every), plan.in_two(replicas) if is_due else plan
