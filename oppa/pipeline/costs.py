"""Describe the time and memory of one micro-batch on each rank of a pipeline, independently of model chunks.

The unit of memory is what the forward pass of one micro-batch leaves on one rank. 1F1B then holds p units on the first rank.
"""

import dataclasses
from collections.abc import Collection, Sequence

from oppa.pipeline.execution import Execution, Times, execute
from oppa.pipeline.graph import PipelineShape, Schedule
from oppa.pipeline.memory import Footprint, peak_memory

RECOMPUTED = 2 / 34
"""Share of a layer's activations that stays under recomputation: its input, 2 of 34 bytes for each token and hidden unit. The attention
keeps no scores (Korthikanti et al. 2022, sections 4 and 5)."""
WEIGHT_MEMORY = 0.5
"""Share of the activations that weights' gradients need after the backward pass. Qi et al. 2024, table 1, allow up to 32 of 34 bytes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Holds the seconds of each rank's layers for one micro-batch, shape (p,), and those of one transfer."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    """Seconds of the inputs' gradients alone."""
    weight_s: Sequence[float]
    transfer_s: float = 0.0
    weight_memory: float = WEIGHT_MEMORY
    recomputed_memory: float = RECOMPUTED

    @property
    def ranks(self) -> int:
        """Return the number of ranks, p."""
        return len(self.forward_s)

    def times(self, shape: PipelineShape, *, split: bool, recomputed: Collection[int] = ()) -> Times:
        """Return the times of each stage; a rank's layers are cut evenly into its chunks.

        A rank that recomputes runs its forward pass again before each backward pass. That backward pass includes the weights' gradients,
        because the activations that they need exist only then.
        """
        forward, backward, weight = [], [], []
        for rank in self._ranks(shape):
            whole = rank in recomputed or not split
            forward.append(self.forward_s[rank])
            backward.append(self.backward_s[rank] + self.weight_s[rank] * whole + self.forward_s[rank] * (rank in recomputed))
            weight.append(self.weight_s[rank] * (not whole))
        forward, backward, weight = ([each / shape.chunks for each in every] for every in (forward, backward, weight))
        transfers = [self.transfer_s] * (shape.stages - 1)
        return Times(forward_s=forward, backward_s=backward, weight_s=weight if split else (), transfer_s=transfers)

    def footprint(self, shape: PipelineShape, *, recomputed: Collection[int] = ()) -> Footprint:
        """Return the memory of each stage; a rank's layers are cut evenly into its chunks."""
        again = [rank in recomputed for rank in self._ranks(shape)]
        held = [(self.recomputed_memory if each else 1.0) / shape.chunks for each in again]
        return Footprint(
            held=held,
            for_weights=[0.0 if each else self.weight_memory / shape.chunks for each in again],
            working=[1 / shape.chunks - each for each in held],
        )

    def executed(self, schedule: Schedule) -> tuple[Execution, list[float]]:
        """Execute a schedule at these times; returns the execution, and the peak memory of each rank."""
        times = self.times(schedule.shape, split=schedule.split)
        return execute(schedule, times), peak_memory(schedule, self.footprint(schedule.shape))

    def bubble_rate(self, executed: Execution) -> float:
        """Return the share of the longest span c without work: (c - m (F + B + W)) / c (Qi et al. 2024, section 5.3).

        If ranks are uneven, it is their mean. Recomputation does not count as work.
        """
        each_s = [sum(rank) for rank in zip(self.forward_s, self.backward_s, self.weight_s, strict=True)]
        return 1 - executed.schedule.shape.micro_batches * sum(each_s) / len(each_s) / executed.longest_span_s

    def _ranks(self, shape: PipelineShape) -> list[int]:
        return [shape.rank_of(stage) for stage in range(shape.stages)]
