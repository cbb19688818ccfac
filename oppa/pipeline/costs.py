"""What a micro-batch costs on each rank of a pipeline, however its layers are cut into chunks.

Memory is counted in what the forward pass of one micro-batch leaves on one rank: 1F1B then holds p of it on the first rank.
"""

import dataclasses
from collections.abc import Collection, Sequence

from oppa.pipeline.execution import Execution, Times, execute
from oppa.pipeline.graph import Order, Shape
from oppa.pipeline.memory import Footprint, peak_memory

RECOMPUTED = 2 / 34
"""What is left of a layer's activations that are computed again: its input, 2 of 34 bytes for each token and hidden unit
(Korthikanti et al. 2022, sections 4 and 5, with an attention that keeps no scores)."""
WEIGHT_MEMORY = 0.5
"""What weights' gradients still need after the backward pass. Qi et al. 2024, table 1, allow up to 32 of 34 bytes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of each rank's layers for one micro-batch, shape (p,), and of one transfer."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    """Of the inputs' gradients alone."""
    weight_s: Sequence[float]
    transfer_s: float = 0.0
    weight_memory: float = WEIGHT_MEMORY
    recomputed_memory: float = RECOMPUTED

    @property
    def ranks(self) -> int:
        """p."""
        return len(self.forward_s)

    def times(self, shape: Shape, *, split: bool, recomputed: Collection[int] = ()) -> Times:
        """Of each stage: a rank's layers are cut evenly.

        Ranks that recompute do their forward pass again before each backward pass, which then has the weights' gradients with it: what
        these work on is there only then.
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

    def footprint(self, shape: Shape, *, recomputed: Collection[int] = ()) -> Footprint:
        """Of each stage."""
        again = [rank in recomputed for rank in self._ranks(shape)]
        held = [(self.recomputed_memory if each else 1.0) / shape.chunks for each in again]
        return Footprint(
            held=held,
            for_weights=[0.0 if each else self.weight_memory / shape.chunks for each in again],
            working=[1 / shape.chunks - each for each in held],
        )

    def executed(self, order: Order) -> tuple[Execution, list[float]]:
        """An order at these times, and what each rank holds at its peak."""
        times = self.times(order.shape, split=order.split)
        return execute(order, times), peak_memory(order, self.footprint(order.shape))

    def bubble_rate(self, executed: Execution) -> float:
        """The share of the longest span c in which a rank does not do its work: (c - m (F + B + W)) / c, of uneven ranks the mean.

        Qi et al. 2024, section 5.3. What is computed again is no work.
        """
        each_s = [sum(rank) for rank in zip(self.forward_s, self.backward_s, self.weight_s, strict=True)]
        return 1 - executed.order.shape.micro_batches * sum(each_s) / len(each_s) / executed.longest_span_s

    def _ranks(self, shape: Shape) -> list[int]:
        return [shape.rank_of(stage) for stage in range(shape.stages)]
