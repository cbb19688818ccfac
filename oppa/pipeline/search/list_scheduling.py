"""Build a schedule action by action in the order of time, by rules that each rank follows.

A free rank takes the first of these that is possible:
    1. a backward pass that has arrived
    2. a forward pass that has arrived, if one more may be in flight; if its memory does not fit, weights' gradients, which free memory
    3. weights' gradients, if the gap until the next arrival is long enough, or if the rank has been idle for too long
    4. nothing, until something arrives

This is the heuristic of Qi et al. 2024, section 3.1, extended to any number of chunks and to uneven stages. It never builds a deadlock:
a rank begins nothing that would leave too little memory to finish what it has begun (Dijkstra's banker's algorithm).
"""

import collections
import heapq
import math
from typing import NamedTuple

from oppa.pipeline.search.task import TOLERANCE, ScheduleTask


class Rules(NamedTuple):
    """Holds the rules of all ranks; tuples have shape (p,)."""

    ahead: tuple[float, ...]
    """Largest number of forward passes in flight."""
    patience: tuple[float, ...]
    """Shortest gap that weights' gradients fill, as a share of the time that they take."""
    idle_s: tuple[float, ...]
    """Total idle seconds after which a rank fills any gap."""


def construct(task: ScheduleTask, rules: Rules) -> list[list[int]]:
    """Return the lists of codes that the rules lead to."""
    return _Construction(task, rules).lists


class _Construction:
    def __init__(self, task: ScheduleTask, rules: Rules) -> None:
        self.task, self.rules = task, rules
        ranks, stages = task.shape.ranks, task.shape.stages
        self.lists: list[list[int]] = [[] for _ in range(ranks)]
        self._arrivals: list[list[float]] = [[] for _ in range(2 * stages)]
        self._arrivals[0] = [0.0] * task.shape.micro_batches
        self._done = [0] * (3 * stages)
        self._free, self._idle, self._holds = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks
        self._flying = [0] * ranks
        self._late: list[collections.deque[int]] = [collections.deque() for _ in range(ranks)]
        self._room = [limit + TOLERANCE - reserve for limit, reserve in zip(task.limits, task.reserve, strict=True)]
        self._moments = [(0.0, rank) for rank in range(ranks)]
        while self._moments:
            now, rank = heapq.heappop(self._moments)
            if now >= self._free[rank]:
                self._decide(now, rank)

    def _decide(self, now: float, rank: int) -> None:
        backward_s, backward = self._next_backward(rank)
        if backward_s <= now:
            return self._do(now, rank, backward)
        forward_s, forward, fits = self._next_forward(now, rank)
        late = self._late[rank]
        if forward_s <= now:
            if fits:
                return self._do(now, rank, forward)
            if late:
                return self._do(now, rank, late.popleft())
        following_s = min(backward_s, forward_s if fits else math.inf)
        if late and self._worth_filling(following_s - now, rank, late[0]):
            return self._do(now, rank, late.popleft())
        if now < following_s < math.inf:
            heapq.heappush(self._moments, (following_s, rank))
        return None

    def _worth_filling(self, gap_s: float, rank: int, code: int) -> bool:
        begun = self.lists[rank]
        return gap_s >= self.rules.patience[rank] * self.task.durations_s[code] or (
            bool(begun) and self._idle[rank] + gap_s > self.rules.idle_s[rank]
        )

    def _next_backward(self, rank: int) -> tuple[float, int]:
        """Return the time at which the next backward pass arrives, and its code."""
        best, stages = (math.inf, -1), self.task.shape.stages
        for stage in self.task.stages_of[rank]:
            code = stages + stage
            arrivals, turn = self._arrivals[code], self._done[code]
            if turn < len(arrivals) and arrivals[turn] < best[0]:
                best = arrivals[turn], code
        return best

    def _next_forward(self, now: float, rank: int) -> tuple[float, int, bool]:
        """Return when the next forward pass that may be in flight arrives, its code, and whether its memory fits."""
        stages, done = self.task.stages_of[rank], self._done
        oldest = done[self.task.shape.stages + stages[0]]
        free = self._flying[rank] < self.rules.ahead[rank]
        best, key = (math.inf, -1, True), (False, math.inf, math.inf)
        for place, stage in enumerate(stages):
            arrivals, turn = self._arrivals[stage], done[stage]
            if turn >= len(arrivals) or not (free or turn == oldest):
                continue
            fits = self._fits(rank, stage, oldest)
            waits = max(arrivals[turn] - now, 0.0)
            this = (not fits, waits, -place)
            if best[1] < 0 or this < key:
                best, key = (arrivals[turn], stage, fits), this
        return best

    def _fits(self, rank: int, stage: int, oldest: int) -> bool:
        """Return whether memory suffices for a forward pass, and then to finish all that has begun, the oldest micro-batch first."""
        held, done = self.task.held, self._done
        stages, backward = self.task.stages_of[rank], self.task.shape.stages
        left = self._room[rank] - self._holds[rank] - held[stage]
        if len(stages) == 1 or left < 0 or left >= sum(held[each] for each in stages):
            return left >= 0
        for turn in range(oldest, done[stages[0]] + 1):
            waiting = sum(held[each] for each in stages if done[each] + (each == stage) <= turn)
            if waiting > left:
                return False
            left += sum(held[each] for each in stages if done[backward + each] <= turn < done[each] + (each == stage))
        return True

    def _do(self, now: float, rank: int, code: int) -> None:
        task, stages = self.task, self.task.shape.stages
        if self.lists[rank]:
            self._idle[rank] += now - self._free[rank]
        self.lists[rank].append(code)
        self._free[rank] = end = now + task.durations_s[code]
        self._holds[rank] += task.changes[code]
        self._done[code] += 1
        if code < stages:
            self._flying[rank] += 1
        elif code < 2 * stages:
            self._flying[rank] -= 1
            self._late[rank].append(code + stages)
        heapq.heappush(self._moments, (end, rank))
        if (fed := task.feeds[code]) >= 0:
            arrived, there = end + task.lags_s[fed], task.rank_of[fed]
            self._arrivals[fed].append(arrived)
            heapq.heappush(self._moments, (max(arrived, self._free[there]), there))


def in_flight(task: ScheduleTask, share: float, more: float) -> tuple[float, ...]:
    """Return the number of forward passes in flight on each rank, rounded, at least 1, shape (p,).

    It is `share` times the rank's round trip, counted in passes of its own, plus `more`.
    """
    times, shape = task.times, task.shape
    trips: list[float] = []
    for stages in task.stages_of:
        below = range(stages[0] + 1, shape.stages)
        trip_s = sum(times.forward_s[i] + times.backward_s[i] for i in below) + sum(task.lags_s[1 + stages[0] : shape.stages]) * 2
        mine_s = sum(times.forward_s[i] + times.backward_s[i] for i in stages) / len(stages)
        trips.append(trip_s / mine_s if mine_s else 0.0)
    return tuple(max(1.0, float(round(more + share * trip))) for trip in trips)
