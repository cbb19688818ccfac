"""Compute when each action of a schedule begins and ends, from the time that it takes.

An action begins when its rank is free and its input has arrived. One pass over the actions in topological order is enough: there is no loop
over time, and nothing has to converge.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oppa.pipeline.graph import BACKWARD, Action, Schedule


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Holds the seconds of each stage for one micro-batch, shape (S,)."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    """Seconds of the gradients of inputs and weights; of inputs alone if the schedule is split."""
    weight_s: Sequence[float] = ()
    """Seconds of the weights' gradients, if the schedule is split."""
    whole_s: Sequence[float] = ()
    """Seconds of a backward pass of a split schedule that computes its weights' gradients at once; empty means the sum of both."""
    transfer_s: Sequence[float] = ()
    """Seconds of a transfer between stages i and i + 1, in either direction, shape (S - 1,); empty means 0."""
    sender_waits: bool = False
    """A rank that sends computes again only after the arrival, because transfers do not overlap computation."""


class Span(NamedTuple):
    """Holds the rank, the beginning and the end of an executed action."""

    action: Action
    rank: int
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Holds a schedule and the times of its execution."""

    schedule: Schedule
    durations_s: tuple[float, ...]
    """Seconds that each action takes, by position in `schedule.sequence`."""
    ends_s: tuple[float, ...]
    """Seconds at which each action ends, by position in `schedule.sequence`."""
    finish_s: tuple[float, ...]
    """Seconds at which each rank has finished its last action, shape (p,)."""

    @property
    def makespan_s(self) -> float:
        """Return the seconds until the last rank has finished."""
        return max(self.finish_s)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Return the seconds that each rank computes, shape (p,)."""
        busy_s = [0.0] * len(self.finish_s)
        for rank, duration_s in zip(self.schedule.sequence.ranks, self.durations_s, strict=True):
            busy_s[rank] += duration_s
        return tuple(busy_s)

    @property
    def spans_s(self) -> tuple[float, ...]:
        """Return the seconds from the beginning of each rank's first action to the end of its last, shape (p,)."""
        begins: dict[int, float] = {}
        for rank, duration_s, end_s in zip(self.schedule.sequence.ranks, self.durations_s, self.ends_s, strict=True):
            begins.setdefault(rank, end_s - duration_s)
        return tuple(end_s - begins[rank] for rank, end_s in enumerate(self.finish_s))

    @property
    def longest_span_s(self) -> float:
        """Return the seconds of a step if no rank waits for the others at its end (Qi et al. 2024, sections 2.3 and 4)."""
        return max(self.spans_s)

    @property
    def bubble_rate(self) -> float:
        """Return the share of the longest span in which ranks do not compute (Qi et al. 2024, section 5.3, for equal stages)."""
        return 1 - sum(self.busy_s) / (len(self.finish_s) * self.longest_span_s)

    def spans(self) -> Iterator[Span]:
        """Yield every action with its rank, beginning and end."""
        sequence = self.schedule.sequence
        for action, rank, duration_s, end_s in zip(sequence.actions, sequence.ranks, self.durations_s, self.ends_s, strict=True):
            yield Span(action, rank, end_s - duration_s, end_s)


def execute(schedule: Schedule, times: Times) -> Execution:
    """Compute when every action of a schedule ends. The schedule must not have a deadlock (`oppa.pipeline.validation`)."""
    shape, sequence = schedule.shape, schedule.sequence
    durations = _durations(schedule, times)
    lags = _lags(schedule, times)
    sending = lags if times.sender_waits else [0.0] * len(lags)
    count = len(sequence.actions)
    assert count == sum(map(len, schedule.ranks)), "a deadlock"
    ends = [0.0] * (count + 1)  # the last entry, 0, is the end of no action
    free = [0.0] * shape.ranks
    for position, (code, rank, need, edge) in enumerate(sequence):
        arrived = ends[need] + lags[edge]
        start = free[rank] if free[rank] > arrived else arrived
        ends[position] = end = start + durations[position]
        free[rank] = end + sending[code]
    return Execution(schedule=schedule, durations_s=durations, ends_s=tuple(ends[:count]), finish_s=tuple(free))


def _durations(schedule: Schedule, times: Times) -> tuple[float, ...]:
    """Return the seconds of each action, by its position."""
    of_code = (*times.forward_s, *times.backward_s, *(times.weight_s or [0.0] * schedule.shape.stages))
    durations = tuple(map(of_code.__getitem__, schedule.sequence.codes))
    if not (schedule.split and times.whole_s):
        return durations
    together = schedule.together
    return tuple(
        duration if action not in together else times.whole_s[action.stage] if action.kind is BACKWARD else 0.0
        for action, duration in zip(schedule.sequence.actions, durations, strict=True)
    )


def _lags(schedule: Schedule, times: Times) -> list[float]:
    """Return the seconds of the transfer of a result, by code of its action; the last entry is for a result that is not sent."""
    shape = schedule.shape
    changes = [shape.rank_of(stage) != shape.rank_of(stage + 1) for stage in range(shape.stages - 1)]
    between = [seconds if change else 0.0 for seconds, change in zip(times.transfer_s or [0.0] * len(changes), changes, strict=True)]
    return [*between, 0.0, 0.0, *between, *[0.0] * shape.stages, 0.0]
