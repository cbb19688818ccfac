"""Define the input of a search: times and memory of every action, and the memory limit of each rank.

Notation:
    code    kind S + stage, as in `oppa.pipeline.graph`; a value for each code has shape (3 S,)
    lists   for each rank the codes of its actions, in its order

Actions of one code take the micro-batches in turn, so lists of codes describe a schedule. No better schedule is lost: micro-batches are
alike, so two that are out of turn can be exchanged, and nothing ends later.
"""

import collections
import dataclasses
import functools
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.pipeline.execution import Times
from oppa.pipeline.graph import BACKWARD, FORWARD, KINDS, WEIGHT, Action, PipelineShape, Schedule
from oppa.pipeline.memory import Footprint

Lists = Sequence[Sequence[int]]
TOLERANCE = 1e-9
"""Slack of a memory limit, because sums of fractions are not exact."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleTask:
    """Describes a graph with split backward passes, and the memory limits of its ranks.

    Raises:
        InputError: a limit is too small even for one micro-batch at a time.
    """

    shape: PipelineShape
    times: Times
    footprint: Footprint
    limits: Sequence[float]
    """Memory limit of each rank, shape (p,), in the footprint's unit."""

    def __post_init__(self) -> None:
        assert len(self.times.weight_s) == self.shape.stages
        for rank, limit in enumerate(self.limits):
            if (least := sum(self.held[stage] for stage in self.stages_of[rank]) + self.reserve[rank]) > limit + TOLERANCE:
                hint = f"one micro-batch at a time needs {least:g}: allow that much, recompute activations, or use more stages"
                raise InputError(f"no schedule keeps rank {rank} within a memory limit of {limit:g}", hint=hint)

    @functools.cached_property
    def stages_of(self) -> list[list[int]]:
        """Return the stages of each rank, in ascending order."""
        return [self.shape.stages_of(rank) for rank in range(self.shape.ranks)]

    @functools.cached_property
    def rank_of(self) -> list[int]:
        """Return the rank of each code, shape (3 S,)."""
        return [self.shape.rank_of(stage) for stage in range(self.shape.stages)] * len(KINDS)

    @functools.cached_property
    def durations_s(self) -> list[float]:
        """Return the seconds of an action of each code, shape (3 S,)."""
        return [*self.times.forward_s, *self.times.backward_s, *self.times.weight_s]

    @functools.cached_property
    def needs(self) -> list[int]:
        """Return the code whose result each code needs, or -1, shape (3 S,)."""
        needed = [self.shape.need_of(Action(kind, stage, 0)) for kind in KINDS for stage in range(self.shape.stages)]
        return [-1 if action is None else self.code(action) for action in needed]

    @functools.cached_property
    def feeds(self) -> list[int]:
        """Return the code of the forward or backward pass that needs the result of each code, or -1, shape (3 S,)."""
        feeds = [-1] * (3 * self.shape.stages)
        for code, need in enumerate(self.needs[: 2 * self.shape.stages]):
            if need >= 0:
                feeds[need] = code
        return feeds

    @functools.cached_property
    def lags_s(self) -> list[float]:
        """Return the seconds from the end of the action that each code needs to the arrival of its result, shape (3 S,)."""
        stages = self.shape.stages
        between = list(self.times.transfer_s) or [0.0] * (stages - 1)
        moved = [between[i] if self.rank_of[i] != self.rank_of[i + 1] else 0.0 for i in range(stages - 1)]
        return [0.0, *moved, *moved, 0.0, *[0.0] * stages]

    @functools.cached_property
    def held(self) -> list[float]:
        """Return the memory that a forward pass of each stage leaves for its backward pass, shape (S,)."""
        return list(self.footprint.held)

    @functools.cached_property
    def changes(self) -> list[float]:
        """Return the change of its rank's memory by an action of each code, shape (3 S,)."""
        kept = list(self.footprint.for_weights) or [0.0] * self.shape.stages
        return [*self.held, *(left - held for left, held in zip(kept, self.held, strict=True)), *(-left for left in kept)]

    @functools.cached_property
    def working(self) -> list[float]:
        """Return the peak memory of an action of each code while it runs, relative to its beginning, shape (3 S,)."""
        none, known = [0.0] * self.shape.stages, self.footprint
        return [*(known.forward_working or none), *(known.working or none), *(known.weights_working or none)]

    @functools.cached_property
    def extra(self) -> list[float]:
        """Return the memory of an action of each code that is free again at its end, shape (3 S,)."""
        return [max(0.0, peak - max(change, 0.0)) for peak, change in zip(self.working, self.changes, strict=True)]

    @functools.cached_property
    def reserve(self) -> list[float]:
        """Return the largest extra memory of an action of each rank, shape (p,)."""
        codes = range(len(self.extra))
        return [max(self.extra[code] for code in codes if self.rank_of[code] == rank) for rank in range(self.shape.ranks)]

    @functools.cached_property
    def busy_s(self) -> list[float]:
        """Return the seconds that each rank computes, shape (p,); no schedule's longest span is shorter than the largest."""
        m = self.shape.micro_batches
        return [m * sum(self.durations_s[k * self.shape.stages + i] for k in KINDS for i in stages) for stages in self.stages_of]

    @property
    def size(self) -> int:
        """Return the number of actions."""
        return 3 * self.shape.stages * self.shape.micro_batches

    def code(self, action: Action) -> int:
        """Return the code of an action."""
        return action.kind * self.shape.stages + action.stage

    def fits(self, rank: int, codes: Sequence[int]) -> bool:
        """Return whether a rank keeps its memory limit with this list of codes."""
        room, changes, working, holds = self.limits[rank] + TOLERANCE, self.changes, self.working, 0.0
        for code in codes:
            before, holds = holds, holds + changes[code]
            if before + working[code] > room or holds > room:
                return False
        return True

    def schedule(self, lists: Lists) -> Schedule:
        """Return the schedule that lists of codes describe."""
        return Schedule(shape=self.shape, split=True, ranks=tuple(tuple(self._actions(codes)) for codes in lists))

    def tidy(self, lists: Lists) -> list[list[int]]:
        """Return the lists with weights' gradients that take no time moved right after their backward passes, which compute them."""
        stages, weights = self.shape.stages, self.durations_s[2 * self.shape.stages :]
        at_once = {stage for stage in range(stages) if not weights[stage]}
        tidied = []
        for codes in lists:
            kept = [code for code in codes if code < 2 * stages or code - 2 * stages not in at_once]
            pairs = [(code, code + stages) if code >= stages and code - stages in at_once else (code,) for code in kept]
            tidied.append([code for pair in pairs for code in pair])
        return tidied

    def _actions(self, codes: Sequence[int]) -> list[Action]:
        turns: collections.Counter[int] = collections.Counter()
        actions = []
        for code in codes:
            kind, stage = divmod(code, self.shape.stages)
            actions.append(Action(kind, stage, turns[code]))
            turns[code] += 1
        return actions


def lists_of(schedule: Schedule) -> list[list[int]]:
    """Return a schedule as lists of codes; if it does not split backward passes, weights' gradients follow each directly."""
    stages = schedule.shape.stages
    if schedule.split:
        return [[int(code) for code in codes] for codes in schedule.codes]
    return [[part for code in codes for part in _apart(int(code), stages)] for codes in schedule.codes]


def _apart(code: int, stages: int) -> tuple[int, ...]:
    return (code, code + (WEIGHT - BACKWARD) * stages) if code >= (FORWARD + 1) * stages else (code,)
