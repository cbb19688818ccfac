"""Build the graph of one iteration with transfers between ranks as nodes of their own (FlexTrain, section 4.2).

Compute nodes are passes. Communication nodes send and receive the results that move between stages on two ranks. An edge means that one
node begins after another ends: it needs the other's result, or the same rank computes both.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

from oppa.pipeline.execution import Times
from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT, Action, Schedule
from oppa.pipeline.memory import Footprint

SEND_FORWARD, RECEIVE_FORWARD, SEND_BACKWARD, RECEIVE_BACKWARD = range(3, 7)
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    WEIGHT: "weight gradient",
    SEND_FORWARD: "send forward",
    RECEIVE_FORWARD: "receive forward",
    SEND_BACKWARD: "send backward",
    RECEIVE_BACKWARD: "receive backward",
}
_MESSAGES = {FORWARD: (SEND_FORWARD, RECEIVE_FORWARD), BACKWARD: (SEND_BACKWARD, RECEIVE_BACKWARD)}


class DagNode(NamedTuple):
    """Describes a computation, or one end of a transfer."""

    kind: int
    stage: int
    micro_batch: int
    rank: int
    seconds: float
    memory: float
    """Change of the memory that its rank holds, in the footprint's unit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    """Holds nodes in a topological order, and for each the positions of the nodes that must end before it begins."""

    nodes: tuple[DagNode, ...]
    needs: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, schedule: Schedule, times: Times, footprint: Footprint) -> Self:
        """Build the graph of a schedule without a deadlock."""
        made = _Making(schedule, times, footprint)
        for node, rank in zip(schedule.sequence.actions, schedule.sequence.ranks, strict=True):
            made.compute(node, rank)
        return cls(nodes=tuple(made.nodes), needs=tuple(made.needs))

    def ends_s(self) -> list[float]:
        """Return the seconds at which each node ends: its own time after its last predecessor ends (FlexTrain, equation 8, corrected)."""
        ends: list[float] = []
        for node, needs in zip(self.nodes, self.needs, strict=True):
            ends.append(node.seconds + max((ends[need] for need in needs), default=0.0))
        return ends

    def critical_path(self) -> list[DagNode]:
        """Return a critical path: the nodes, from first to last, whose times add up to the time of the whole iteration."""
        ends = self.ends_s()
        at: int | None = max(range(len(ends)), key=ends.__getitem__) if ends else None
        path: list[DagNode] = []
        while at is not None:
            path.append(self.nodes[at])
            at = max(self.needs[at], key=ends.__getitem__, default=None)
        return path[::-1]


def shares(path: Sequence[DagNode]) -> dict[str, float]:
    """Return the share of a path's time by kind of node, the largest first; kinds that take no time are left out."""
    whole = sum(node.seconds for node in path)
    seconds: dict[str, float] = collections.defaultdict(float)
    for node in path:
        seconds[NAMES[node.kind]] += node.seconds
    return {name: each / whole for name, each in sorted(seconds.items(), key=lambda item: -item[1]) if each}


class _Making:
    """Builds a graph, pass by pass."""

    def __init__(self, schedule: Schedule, times: Times, footprint: Footprint) -> None:
        self.nodes: list[DagNode] = []
        self.needs: list[tuple[int, ...]] = []
        self._schedule, self._times, self._footprint = schedule, times, footprint
        self._computed: dict[Action, int] = {}
        self._last: dict[int, int] = {}
        """Position of the last pass of each rank."""

    def compute(self, node: Action, rank: int) -> None:
        """Add a pass after its input and after the rank's previous pass; adds the transfer too if the input is on another rank."""
        need = self._schedule.shape.need_of(node)
        needs = [self._last[rank]] if rank in self._last else []
        if need is not None:
            source = self._computed[need]
            elsewhere = self.nodes[source].rank != rank
            needs.append(self._received(need, node, rank, source) if elsewhere else source)
        self._computed[node] = self._last[rank] = self._add(DagNode(*node, rank, self._seconds(node), self._memory(node)), needs)

    def _received(self, need: Action, node: Action, rank: int, source: int) -> int:
        """Add the transfer of a result to a rank; returns the position of the receiving node."""
        send, receive = _MESSAGES[need.kind]
        between = min(need.stage, node.stage)
        seconds = self._times.transfer_s[between] if self._times.transfer_s else 0.0
        sent = self._add(DagNode(send, need.stage, need.micro_batch, self.nodes[source].rank, seconds, 0.0), [source])
        return self._add(DagNode(receive, node.stage, node.micro_batch, rank, 0.0, 0.0), [sent])

    def _add(self, node: DagNode, needs: list[int]) -> int:
        self.nodes.append(node)
        self.needs.append(tuple(needs))
        return len(self.nodes) - 1

    def _seconds(self, node: Action) -> float:
        times = self._times
        together = node in self._schedule.together and bool(times.whole_s)
        if node.kind == WEIGHT:
            return 0.0 if together else times.weight_s[node.stage]
        return (times.forward_s if node.kind == FORWARD else times.whole_s if together else times.backward_s)[node.stage]

    def _memory(self, node: Action) -> float:
        held = self._footprint.held[node.stage]
        split = self._schedule.split and len(self._footprint.for_weights) > 0
        kept = self._footprint.for_weights[node.stage] if split else 0.0
        return {FORWARD: held, BACKWARD: kept - held, WEIGHT: -kept}[node.kind]
