"""Check a schedule: every node occurs once and on its rank, nothing deadlocks, and no rank frees memory that it does not hold."""

from collections import Counter

from oppa.pipeline.graph import BACKWARD, FORWARD, KINDS, Node, Order, Shape
from oppa.pipeline.memory import Footprint, memory_curves


def violations(order: Order) -> list[str]:
    """Return a message for each violation; empty for a valid schedule."""
    return [*_wrong_nodes(order), *_deadlock(order), *_negative_memory(order)]


def all_nodes(shape: Shape, *, split: bool) -> set[Node]:
    """Return every node of the graph."""
    kinds = KINDS if split else (FORWARD, BACKWARD)
    return {Node(kind, stage, each) for kind in kinds for stage in range(shape.stages) for each in range(shape.micro_batches)}


def _wrong_nodes(order: Order) -> list[str]:
    expected = all_nodes(order.shape, split=order.split)
    found = Counter(node for nodes in order.ranks for node in nodes)
    misplaced = [node for rank, nodes in enumerate(order.ranks) for node in nodes if order.shape.rank_of(node.stage) != rank]
    return [
        *(f"{name(node)} is left out" for node in sorted(expected - found.keys())),
        *(f"{name(node)} is none of the graph" for node in sorted(found.keys() - expected)),
        *(f"{name(node)} is done {count} times" for node, count in sorted(found.items()) if count > 1),
        *(f"{name(node)} is not on rank {order.shape.rank_of(node.stage)}" for node in misplaced),
    ]


def _deadlock(order: Order) -> list[str]:
    reached = Counter(order.sequence.ranks)
    stuck = [(rank, nodes[reached[rank]]) for rank, nodes in enumerate(order.ranks) if reached[rank] < len(nodes)]
    return [f"rank {rank} waits forever at {name(node)}" for rank, node in stuck]


def _negative_memory(order: Order) -> list[str]:
    stages = order.shape.stages
    curves = memory_curves(order, Footprint(held=[1.0] * stages, for_weights=[0.5] * stages))
    return [f"rank {rank} frees what it does not hold" for rank, curve in enumerate(curves) if curve.min(initial=0.0) < 0]


def name(node: Node) -> str:
    """Return a node in words: `F(stage 1, micro-batch 3)`."""
    return f"{'FBW'[node.kind]}(stage {node.stage}, micro-batch {node.micro_batch})"
