"""When each node of an order begins and ends, given how long it takes.

A node begins when its rank is free and what it works on has arrived. One pass over the nodes in topological order tells all of it:
there is no loop over time, and nothing to converge.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oppa.pipeline.graph import BACKWARD, Node, Order


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, of each stage for one micro-batch, shape (S,)."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    """Of inputs and weights; of inputs alone where the order is split."""
    weight_s: Sequence[float] = ()
    """Of the weights' gradients; only where the order is split."""
    whole_s: Sequence[float] = ()
    """Of a backward pass of a split order whose weights' gradients follow at once, both computed in one go; empty: as long as both."""
    transfer_s: Sequence[float] = ()
    """Between stage i and i + 1, either way, shape (S - 1,); empty: nothing."""
    sender_waits: bool = False
    """A rank that sends computes again when it has arrived (transfers are not overlapped)."""


class Span(NamedTuple):
    """A node as it was executed."""

    node: Node
    rank: int
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An order as it was executed."""

    order: Order
    durations_s: tuple[float, ...]
    """By position in the order's sequence."""
    ends_s: tuple[float, ...]
    """By position in the order's sequence."""
    finish_s: tuple[float, ...]
    """When each rank has done its last node."""

    @property
    def makespan_s(self) -> float:
        """Until the last rank is done."""
        return max(self.finish_s)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """What each rank computed for, shape (p,)."""
        busy_s = [0.0] * len(self.finish_s)
        for rank, duration_s in zip(self.order.sequence.ranks, self.durations_s, strict=True):
            busy_s[rank] += duration_s
        return tuple(busy_s)

    @property
    def spans_s(self) -> tuple[float, ...]:
        """From the beginning of each rank's first node to the end of its last, shape (p,)."""
        begins: dict[int, float] = {}
        for rank, duration_s, end_s in zip(self.order.sequence.ranks, self.durations_s, self.ends_s, strict=True):
            begins.setdefault(rank, end_s - duration_s)
        return tuple(end_s - begins[rank] for rank, end_s in enumerate(self.finish_s))

    @property
    def longest_span_s(self) -> float:
        """What a step costs where no rank waits for the others at its end (Qi et al. 2024, sections 2.3 and 4)."""
        return max(self.spans_s)

    @property
    def bubble_rate(self) -> float:
        """The share of the longest span in which ranks do not compute (Qi et al. 2024, section 5.3, for equal stages)."""
        return 1 - sum(self.busy_s) / (len(self.finish_s) * self.longest_span_s)

    def spans(self) -> Iterator[Span]:
        """Every node with its rank, beginning and end."""
        sequence = self.order.sequence
        for node, rank, duration_s, end_s in zip(sequence.nodes, sequence.ranks, self.durations_s, self.ends_s, strict=True):
            yield Span(node, rank, end_s - duration_s, end_s)


def execute(order: Order, times: Times) -> Execution:
    """When every node of an order ends. The order has no deadlock (`oppa.pipeline.validation`)."""
    shape, sequence = order.shape, order.sequence
    durations = _durations(order, times)
    lags = _lags(order, times)
    sending = lags if times.sender_waits else [0.0] * len(lags)
    count = len(sequence.nodes)
    assert count == sum(map(len, order.ranks)), "a deadlock"
    ends = [0.0] * (count + 1)  # the last is the end of "nothing"
    free = [0.0] * shape.ranks
    for position, (code, rank, need, edge) in enumerate(sequence):
        arrived = ends[need] + lags[edge]
        start = free[rank] if free[rank] > arrived else arrived
        ends[position] = end = start + durations[position]
        free[rank] = end + sending[code]
    return Execution(order=order, durations_s=durations, ends_s=tuple(ends[:count]), finish_s=tuple(free))


def _durations(order: Order, times: Times) -> tuple[float, ...]:
    """Of each node, by its position."""
    of_code = (*times.forward_s, *times.backward_s, *(times.weight_s or [0.0] * order.shape.stages))
    durations = tuple(map(of_code.__getitem__, order.sequence.codes))
    if not (order.split and times.whole_s):
        return durations
    together = order.together
    return tuple(
        duration if node not in together else times.whole_s[node.stage] if node.kind is BACKWARD else 0.0
        for node, duration in zip(order.sequence.nodes, durations, strict=True)
    )


def _lags(order: Order, times: Times) -> list[float]:
    """How long the result of a node takes to the rank that needs it, by code; the last is that of what is not sent."""
    shape = order.shape
    changes = [shape.rank_of(stage) != shape.rank_of(stage + 1) for stage in range(shape.stages - 1)]
    between = [seconds if change else 0.0 for seconds, change in zip(times.transfer_s or [0.0] * len(changes), changes, strict=True)]
    return [*between, 0.0, 0.0, *between, *[0.0] * shape.stages, 0.0]
