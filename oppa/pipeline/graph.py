"""Define the graph of one optimizer step through a pipeline, and its schedule: the order in which each rank computes its actions.

Notation:
    p   ranks; v model chunks of each; S = p v stages; m micro-batches
    F, B, W of stage i and micro-batch j: forward pass, backward pass, gradients of the weights

    F(i, j) needs F(i-1, j); B(S-1, j) needs F(S-1, j); B(i, j) needs B(i+1, j); W(i, j) needs B(i, j)

A schedule that does not split the backward pass has no W: its B computes the gradients of inputs and weights. A transfer from one stage
to the next is an edge with a duration, not an action. It has one sender and one receiver, and it waits for its sender alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, WEIGHT = KINDS = range(3)
"""Kinds of actions. They are plain integers because actions are looked up by the thousand, and an Enum's hash is slow."""


class Action(NamedTuple):
    """Describes one computation of one stage for one micro-batch."""

    kind: int
    stage: int
    micro_batch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
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

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages that a rank holds, in ascending order."""
        return [stage for stage in range(self.stages) if self.rank_of(stage) == rank]

    def sum_by_rank(self, of_stages: Sequence[float]) -> list[float]:
        """Return the sums over the stages of each rank, shape (p,)."""
        sums = [0.0] * self.ranks
        for stage, value in enumerate(of_stages):
            sums[self.rank_of(stage)] += value
        return sums

    def need_of(self, action: Action) -> Action | None:
        """Return the action whose result an action needs; None for the forward pass of the first stage."""
        kind, stage, micro_batch = action
        if kind is FORWARD:
            return Action(kind, stage - 1, micro_batch) if stage else None
        if kind is WEIGHT:
            return Action(BACKWARD, stage, micro_batch)
        last = stage == self.stages - 1
        return Action(FORWARD, stage, micro_batch) if last else Action(kind, stage + 1, micro_batch)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Schedule:
    """Holds a schedule: the actions of each rank, in the order in which it computes them. Instances compare by identity."""

    shape: PipelineShape
    split: bool = False
    """The gradients of the weights are actions of their own."""
    apart: bool = False
    """The gradients of the weights are computed separately even right after their backward pass."""
    ranks: tuple[tuple[Action, ...], ...]

    @functools.cached_property
    def sequence(self) -> "ActionSequence":
        """Return the actions in a topological order; actions that a deadlock blocks are missing."""
        return ActionSequence.of(self)

    @functools.cached_property
    def together(self) -> frozenset[Action]:
        """Return the backward passes that their own weights' gradients follow directly, and these; each pair is one computation."""
        if self.apart:
            return frozenset()
        pairs = (pair for actions in self.ranks for pair in itertools.pairwise(actions))
        return frozenset(
            action for one, other in pairs if one.kind == BACKWARD and other == Action(WEIGHT, *one[1:]) for action in (one, other)
        )

    @functools.cached_property
    def codes(self) -> tuple[NDArray[np.intp], ...]:
        """Return the codes of each rank's actions, in its order; code = kind S + stage."""
        stages = self.shape.stages
        return tuple(np.array([action.kind * stages + action.stage for action in actions], np.intp) for actions in self.ranks)


def whole(schedule: Schedule) -> Schedule:
    """Return the schedule with the gradients of the weights inside each backward pass; the order of passes stays the same."""
    ranks = tuple(tuple(action for action in actions if action.kind != WEIGHT) for actions in schedule.ranks)
    return Schedule(shape=schedule.shape, ranks=ranks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionSequence:
    """Holds the actions of a schedule in a topological order, as columns of length n.

    A code is kind S + stage. A need is the position of the action whose result an action needs, or n for none. An edge is the code of that
    action if its result moves to another rank, else 3 S.
    """

    actions: tuple[Action, ...]
    codes: tuple[int, ...]
    ranks: tuple[int, ...]
    needs: tuple[int, ...]
    edges: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> "ActionSequence":
        """Build the sequence: advance each rank as long as the results that it needs exist, until no rank can advance."""
        stages, holder = schedule.shape.stages, [schedule.shape.rank_of(stage) for stage in range(schedule.shape.stages)]
        position: dict[Action | None, int] = {None: sum(map(len, schedule.ranks))}
        rows: list[tuple[Action, int, int, int, int]] = []
        for rank, action, need in _walk(schedule, position):
            position[action] = len(rows)
            edge = 3 * stages if need is None or holder[need.stage] == rank else need.kind * stages + need.stage
            rows.append((action, action.kind * stages + action.stage, rank, position[need], edge))
        actions, codes, ranks, needs, edges = zip(*rows, strict=True) if rows else ((),) * 5
        return cls(actions=actions, codes=codes, ranks=ranks, needs=needs, edges=edges)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.codes, self.ranks, self.needs, self.edges, strict=True)


def _walk(schedule: Schedule, done: Mapping[Action | None, int]) -> Iterator[tuple[int, Action, Action | None]]:
    """Yield rank, action and needed action as soon as the needed action is in `done`; the caller adds each action to `done`."""
    need_of = schedule.shape.need_of
    waiting = [[(action, need_of(action)) for action in reversed(actions)] for actions in schedule.ranks]
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(waiting):
            while actions and actions[-1][1] in done:
                yield rank, *actions.pop()
                moved = True
