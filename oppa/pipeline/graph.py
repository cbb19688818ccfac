"""The graph of one optimizer step through a pipeline, and an order of it: what each rank does, one node after the other.

Notation:
    p   ranks; v model chunks of each; S = p v stages; m micro-batches
    F, B, W of stage i and micro-batch j: forward pass, backward pass, gradients of the weights

    F(i, j) needs F(i-1, j); B(S-1, j) needs F(S-1, j); B(i, j) needs B(i+1, j); W(i, j) needs B(i, j)

A schedule that does not split the backward pass has no W: its B computes the gradients of inputs and weights. What one stage sends to the
next is an edge with a duration, not a node: it has one sender and one receiver, and what it waits for is its sender alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, WEIGHT = KINDS = range(3)
"""What a node computes. Plain numbers: nodes are looked up by the thousand, and an Enum's hash is slow."""


class Node(NamedTuple):
    """One computation of one stage for one micro-batch."""

    kind: int
    stage: int
    micro_batch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many ranks, model chunks and micro-batches, and which rank holds which stage."""

    ranks: int
    micro_batches: int
    chunks: int = 1
    folded: bool = False
    """Stages go down the ranks and come back up, so the last lies beside the first (a V), instead of going down again and again."""

    @property
    def stages(self) -> int:
        """All stages, S = p v."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        chunk, rank = divmod(stage, self.ranks)
        return self.ranks - 1 - rank if self.folded and chunk % 2 else rank

    def need_of(self, node: Node) -> Node | None:
        """The node whose result it works on; None for the first stage's forward pass."""
        kind, stage, micro_batch = node
        if kind is FORWARD:
            return Node(kind, stage - 1, micro_batch) if stage else None
        if kind is WEIGHT:
            return Node(BACKWARD, stage, micro_batch)
        last = stage == self.stages - 1
        return Node(FORWARD, stage, micro_batch) if last else Node(kind, stage + 1, micro_batch)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Order:
    """What each rank does, in its order. Compared by identity: whoever makes one keeps it."""

    shape: Shape
    split: bool = False
    """The gradients of the weights are nodes of their own."""
    apart: bool = False
    """They are computed by themselves even right behind their backward pass."""
    ranks: tuple[tuple[Node, ...], ...]

    @functools.cached_property
    def sequence(self) -> "Sequence":
        """The nodes in an order in which they can be computed one by one; without those that never can (a deadlock)."""
        return Sequence.of(self)

    @functools.cached_property
    def together(self) -> frozenset[Node]:
        """Backward passes right behind which the same stage computes the gradients of the weights, and these; both are one computation."""
        if self.apart:
            return frozenset()
        pairs = (pair for nodes in self.ranks for pair in itertools.pairwise(nodes))
        return frozenset(node for one, other in pairs if one.kind == BACKWARD and other == Node(WEIGHT, *one[1:]) for node in (one, other))

    @functools.cached_property
    def codes(self) -> tuple[NDArray[np.intp], ...]:
        """For each rank the codes of its nodes, in its order."""
        stages = self.shape.stages
        return tuple(np.array([node.kind * stages + node.stage for node in nodes], np.intp) for nodes in self.ranks)


def whole(order: Order) -> Order:
    """The same order of forward and backward passes, with the gradients of the weights in each backward pass."""
    ranks = tuple(tuple(node for node in nodes if node.kind != WEIGHT) for nodes in order.ranks)
    return Order(shape=order.shape, ranks=ranks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A topological order, in columns of length n.

    code = kind S + stage. `need` is the position of the node that one works on, or n: nothing. `edge` is the code of that node where its
    result changes ranks, else 3 S: nothing is sent.
    """

    nodes: tuple[Node, ...]
    codes: tuple[int, ...]
    ranks: tuple[int, ...]
    needs: tuple[int, ...]
    edges: tuple[int, ...]

    @classmethod
    def of(cls, order: Order) -> "Sequence":
        """Walk over the ranks, each as far as what it needs is there, until none gets further."""
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
    """Each rank's nodes, with what they need, as soon as that is among those `done`; the caller notes what it is given."""
    need_of = order.shape.need_of
    waiting = [[(node, need_of(node)) for node in reversed(nodes)] for nodes in order.ranks]
    moved = True
    while moved:
        moved = False
        for rank, nodes in enumerate(waiting):
            while nodes and nodes[-1][1] in done:
                yield rank, *nodes.pop()
                moved = True
