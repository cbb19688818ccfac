"""Define the graph of one optimizer step through a pipeline, and its schedule: the order in which each rank computes its nodes.

Notation:
    p   ranks; v model chunks of each; S = p v stages; m micro-batches
    F, B, W of stage i and micro-batch j: forward pass, backward pass, gradients of the weights

    F(i, j) needs F(i-1, j); B(S-1, j) needs F(S-1, j); B(i, j) needs B(i+1, j); W(i, j) needs B(i, j)

A schedule that does not split the backward pass has no W: its B computes the gradients of inputs and weights. A transfer from one stage
to the next is an edge with a duration, not a node. It has one sender and one receiver, and it waits for its sender alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, WEIGHT = KINDS = range(3)
"""Kinds of nodes. They are plain integers because nodes are looked up by the thousand, and an Enum's hash is slow."""


class Node(NamedTuple):
    """Describes one computation of one stage for one micro-batch."""

    kind: int
    stage: int
    micro_batch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Describes the numbers of ranks, micro-batches and model chunks, and the assignment of stages to ranks."""

    ranks: int
    micro_batches: int
    chunks: int = 1
    folded: bool = False
    """Stages go down the ranks and back up (a V), so that with two chunks the first rank holds the first and the last stage.

    Otherwise every chunk starts at rank 0.
    """

    @property
    def stages(self) -> int:
        """Return the number of stages, S = p v."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        chunk, rank = divmod(stage, self.ranks)
        return self.ranks - 1 - rank if self.folded and chunk % 2 else rank

    def need_of(self, node: Node) -> Node | None:
        """Return the node whose result a node needs; None for the forward pass of the first stage."""
        kind, stage, micro_batch = node
        if kind is FORWARD:
            return Node(kind, stage - 1, micro_batch) if stage else None
        if kind is WEIGHT:
            return Node(BACKWARD, stage, micro_batch)
        last = stage == self.stages - 1
        return Node(FORWARD, stage, micro_batch) if last else Node(kind, stage + 1, micro_batch)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Order:
    """Holds a schedule: the nodes of each rank, in the order in which it computes them. Instances compare by identity."""

    shape: Shape
    split: bool = False
    """The gradients of the weights are nodes of their own."""
    apart: bool = False
    """The gradients of the weights are computed separately even right after their backward pass."""
    ranks: tuple[tuple[Node, ...], ...]

    @functools.cached_property
    def sequence(self) -> "Sequence":
        """Return the nodes in a topological order; nodes that a deadlock blocks are missing."""
        return Sequence.of(self)

    @functools.cached_property
    def together(self) -> frozenset[Node]:
        """Return the backward passes that their own weights' gradients follow directly, and these; each pair is one computation."""
        if self.apart:
            return frozenset()
        pairs = (pair for nodes in self.ranks for pair in itertools.pairwise(nodes))
        return frozenset(node for one, other in pairs if one.kind == BACKWARD and other == Node(WEIGHT, *one[1:]) for node in (one, other))

    @functools.cached_property
    def codes(self) -> tuple[NDArray[np.intp], ...]:
        """Return the codes of each rank's nodes, in its order; code = kind S + stage."""
        stages = self.shape.stages
        return tuple(np.array([node.kind * stages + node.stage for node in nodes], np.intp) for nodes in self.ranks)


def whole(order: Order) -> Order:
    """Return the schedule with the gradients of the weights inside each backward pass; the order of passes stays the same."""
    ranks = tuple(tuple(node for node in nodes if node.kind != WEIGHT) for nodes in order.ranks)
    return Order(shape=order.shape, ranks=ranks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Holds the nodes of a schedule in a topological order, as columns of length n.

    A code is kind S + stage. A need is the position of the node whose result a node needs, or n for none. An edge is the code of that
    node if its result moves to another rank, else 3 S.
    """

    nodes: tuple[Node, ...]
    codes: tuple[int, ...]
    ranks: tuple[int, ...]
    needs: tuple[int, ...]
    edges: tuple[int, ...]

    @classmethod
    def of(cls, order: Order) -> "Sequence":
        """Build the sequence: advance each rank as long as the results that it needs exist, until no rank can advance."""
        stages, holder = order.shape.stages, [order.shape.rank_of(stage) for stage in range(order.shape.stages)]
        position: dict[Node | None, int] = {None: sum(map(len, order.ranks))}
        rows: list[tuple[Node, int, int, int, int]] = []
        for rank, node, need in _walk(order, position):
            position[node] = len(rows)
            edge = 3 * stages if need is None or holder[need.stage] == rank else need.kind * stages + need.stage
            rows.append((node, node.kind * stages + node.stage, rank, position[need], edge))
        nodes, codes, ranks, needs, edges = zip(*rows, strict=True) if rows else ((),) * 5
        return cls(nodes=nodes, codes=codes, ranks=ranks, needs=needs, edges=edges)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.codes, self.ranks, self.needs, self.edges, strict=True)


def _walk(order: Order, done: Mapping[Node | None, int]) -> Iterator[tuple[int, Node, Node | None]]:
    """Yield rank, node and needed node as soon as the needed node is in `done`; the caller adds each node to `done`."""
    need_of = order.shape.need_of
    waiting = [[(node, need_of(node)) for node in reversed(nodes)] for nodes in order.ranks]
    moved = True
    while moved:
        moved = False
        for rank, nodes in enumerate(waiting):
            while nodes and nodes[-1][1] in done:
                yield rank, *nodes.pop()
                moved = True
