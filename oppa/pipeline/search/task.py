"""What is asked of a search: times and memory of every node, and how much each rank may hold.

Notation:
    code    kind S + stage, as in `oppa.pipeline.graph`; shape (3 S,) of what is by code
    lists   for each rank the codes of its nodes, in its order

Nodes of one code take the micro-batches in turn, so a list of codes is an order: micro-batches are alike, and whichever comes first may as
well be the first (exchange two, and nothing ends later).
"""

import collections
import dataclasses
import functools
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.pipeline.execution import Times
from oppa.pipeline.graph import BACKWARD, FORWARD, KINDS, WEIGHT, Node, Order, Shape
from oppa.pipeline.memory import Footprint

Lists = Sequence[Sequence[int]]
TOLERANCE = 1e-9
"""Of a limit: sums of fractions are not exact."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A graph whose weights' gradients are apart, and what its ranks may hold.

    Raises:
        InputError: a limit that not even one micro-batch at a time keeps.
    """

    shape: Shape
    times: Times
    footprint: Footprint
    limits: Sequence[float]
    """What each rank may hold, shape (p,), in the footprint's unit."""

    def __post_init__(self) -> None:
        assert len(self.times.weight_s) == self.shape.stages
        for rank, limit in enumerate(self.limits):
            if (least := sum(self.held[stage] for stage in self.stages_of[rank]) + self.working[rank]) > limit + TOLERANCE:
                hint = f"one micro-batch at a time needs {least:g}: allow that much, recompute activations, or use more stages"
                raise InputError(f"no order keeps rank {rank} within a memory limit of {limit:g}", hint=hint)

    @functools.cached_property
    def stages_of(self) -> list[list[int]]:
        """The stages of each rank, the first ones first."""
        return [[stage for stage in range(self.shape.stages) if self.shape.rank_of(stage) == rank] for rank in range(self.shape.ranks)]

    @functools.cached_property
    def rank_of(self) -> list[int]:
        """By code."""
        return [self.shape.rank_of(stage) for stage in range(self.shape.stages)] * len(KINDS)

    @functools.cached_property
    def durations_s(self) -> list[float]:
        """By code."""
        return [*self.times.forward_s, *self.times.backward_s, *self.times.weight_s]

    @functools.cached_property
    def needs(self) -> list[int]:
        """The code whose result each code works on, or -1."""
        needed = [self.shape.need_of(Node(kind, stage, 0)) for kind in KINDS for stage in range(self.shape.stages)]
        return [-1 if node is None else self.code(node) for node in needed]

    @functools.cached_property
    def feeds(self) -> list[int]:
        """The forward or backward pass that works on the result of each code, or -1."""
        feeds = [-1] * (3 * self.shape.stages)
        for code, need in enumerate(self.needs[: 2 * self.shape.stages]):
            if need >= 0:
                feeds[need] = code
        return feeds

    @functools.cached_property
    def lags_s(self) -> list[float]:
        """From the end of what each code works on until it has arrived, by code."""
        stages = self.shape.stages
        between = list(self.times.transfer_s) or [0.0] * (stages - 1)
        moved = [between[i] if self.rank_of[i] != self.rank_of[i + 1] else 0.0 for i in range(stages - 1)]
        return [0.0, *moved, *moved, 0.0, *[0.0] * stages]

    @functools.cached_property
    def held(self) -> list[float]:
        """By stage."""
        return list(self.footprint.held)

    @functools.cached_property
    def changes(self) -> list[float]:
        """What a node of each code adds to what its rank holds."""
        kept = list(self.footprint.for_weights) or [0.0] * self.shape.stages
        return [*self.held, *(left - held for left, held in zip(kept, self.held, strict=True)), *(-left for left in kept)]

    @functools.cached_property
    def working(self) -> list[float]:
        """The most that a backward pass of each rank needs besides, while it runs."""
        working = list(self.footprint.working) or [0.0] * self.shape.stages
        return [max(working[stage] for stage in stages) for stages in self.stages_of]

    @functools.cached_property
    def busy_s(self) -> list[float]:
        """What each rank computes for: no order's span is shorter than the longest."""
        m = self.shape.micro_batches
        return [m * sum(self.durations_s[k * self.shape.stages + i] for k in KINDS for i in stages) for stages in self.stages_of]

    @property
    def size(self) -> int:
        """All nodes."""
        return 3 * self.shape.stages * self.shape.micro_batches

    def code(self, node: Node) -> int:
        """The code of a node."""
        return node.kind * self.shape.stages + node.stage

    def fits(self, rank: int, codes: Sequence[int]) -> bool:
        """Whether a rank stays within its limit."""
        room, first, last = self.limits[rank] + TOLERANCE, self.shape.stages, 2 * self.shape.stages
        changes, working, holds = self.changes, self.working[rank], 0.0
        for code in codes:
            if first <= code < last and holds + working > room:
                return False
            holds += changes[code]
            if holds > room:
                return False
        return True

    def order(self, lists: Lists) -> Order:
        """The order that lists of codes are."""
        return Order(shape=self.shape, split=True, ranks=tuple(tuple(self._nodes(codes)) for codes in lists))

    def tidy(self, lists: Lists) -> list[list[int]]:
        """The same with weights' gradients that take no time right behind their backward passes, which compute them."""
        stages, weights = self.shape.stages, self.durations_s[2 * self.shape.stages :]
        at_once = {stage for stage in range(stages) if not weights[stage]}
        tidied = []
        for codes in lists:
            kept = [code for code in codes if code < 2 * stages or code - 2 * stages not in at_once]
            behind = [(code, code + stages) if code >= stages and code - stages in at_once else (code,) for code in kept]
            tidied.append([code for pair in behind for code in pair])
        return tidied

    def _nodes(self, codes: Sequence[int]) -> list[Node]:
        turns: collections.Counter[int] = collections.Counter()
        nodes = []
        for code in codes:
            kind, stage = divmod(code, self.shape.stages)
            nodes.append(Node(kind, stage, turns[code]))
            turns[code] += 1
        return nodes


def lists_of(order: Order) -> list[list[int]]:
    """An order of three kinds as lists of codes; each backward pass of an order that does not split them with its weights' gradients."""
    stages = order.shape.stages
    if order.split:
        return [[int(code) for code in codes] for codes in order.codes]
    return [[part for code in codes for part in _apart(int(code), stages)] for codes in order.codes]


def _apart(code: int, stages: int) -> tuple[int, ...]:
    return (code, code + (WEIGHT - BACKWARD) * stages) if code >= (FORWARD + 1) * stages else (code,)
