"""Compute the longest span of lists of codes as fast as plain Python can; `oppa.pipeline.execution` computes everything else."""

import math
from typing import NamedTuple

from oppa.pipeline.search.task import Lists, ScheduleTask


class Makespan(NamedTuple):
    """Holds the length of a schedule; it compares by the longest span, then by the sum of all spans."""

    span_s: float
    total_s: float


ENDLESS = Makespan(math.inf, math.inf)


def makespan(task: ScheduleTask, lists: Lists) -> Makespan:
    """Return the longest span of any rank, and the sum of all spans; `ENDLESS` for a deadlock."""
    needs, lags, durations = task.needs, task.lags_s, task.durations_s
    holder, feeds = task.rank_of, task.feeds
    ranks = len(lists)
    ends: list[list[float]] = [[] for _ in durations]
    free, begins, done = [0.0] * ranks, [-1.0] * ranks, [0] * ranks
    waiting = list(range(ranks))
    while waiting:
        rank = waiting.pop()
        codes, now, at = lists[rank], free[rank], done[rank]
        count, wakes = len(codes), set()
        while at < count:
            code = codes[at]
            need, mine = needs[code], ends[code]
            if need >= 0:
                theirs, turn = ends[need], len(mine)
                if len(theirs) <= turn:
                    break
                arrived = theirs[turn] + lags[code]
                if arrived > now:
                    now = arrived
            if begins[rank] < 0:
                begins[rank] = now
            now += durations[code]
            mine.append(now)
            if feeds[code] >= 0:
                wakes.add(holder[feeds[code]])
            at += 1
        free[rank], done[rank] = now, at
        waiting.extend(wakes - {rank})
    if any(at < len(codes) for at, codes in zip(done, lists, strict=True)):
        return ENDLESS
    spans = [end - begin for end, begin in zip(free, begins, strict=True)]
    return Makespan(max(spans), sum(spans))
