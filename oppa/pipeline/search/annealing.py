"""Improve a schedule by simulated annealing: an action moves a few places up or down its rank's list (Kirkpatrick et al. 1983).

A longer schedule is accepted with a probability that falls with the increase, and with time. Lists that exceed a limit are skipped.
"""

import math

import numpy as np

from oppa.pipeline.search.makespan import ENDLESS, Makespan, makespan
from oppa.pipeline.search.task import Lists, ScheduleTask

HOPS = (1, 1, 1, 2, 3, 5, 8)
"""Distances that an action moves, each equally likely."""
TIES = 1e-3
"""Weight of the sum of all spans against the longest span; it guides the search among schedules of equal length."""


def anneal(task: ScheduleTask, lists: Lists, *, moves: int, heat: float, draws: np.random.Generator) -> tuple[Makespan, list[list[int]]]:
    """Return the length of the best lists found, and these lists.

    Args:
        task: Times, memory and limits.
        lists: Lists of codes to begin with, which keep the limits.
        moves: Number of moves to try.
        heat: Relative increase in length that is accepted with probability 1/e at the beginning.
        draws: Random generator.
    """
    best_length = now_length = makespan(task, lists)
    best = now = [list(codes) for codes in lists]
    least_s, heat_s = max(task.busy_s), heat * best_length.span_s
    for move in range(moves):
        if best_length.span_s <= least_s * (1 + 1e-9):
            break
        rank, codes = _moved(now, draws)
        if codes == now[rank] or not task.fits(rank, codes):
            continue
        then = [*now[:rank], codes, *now[rank + 1 :]]
        then_length = makespan(task, then)
        longer_s = _cost(then_length) - _cost(now_length)
        if then_length != ENDLESS and (longer_s <= 0 or draws.random() < math.exp(-longer_s / (heat_s * (1 - move / moves)))):
            now, now_length = then, then_length
            if now_length < best_length:
                best, best_length = now, now_length
    return best_length, best


def _moved(lists: list[list[int]], draws: np.random.Generator) -> tuple[int, list[int]]:
    """Return a random rank, and its list with one action moved."""
    rank = int(draws.integers(len(lists)))
    codes = list(lists[rank])
    here = int(draws.integers(len(codes)))
    hop = HOPS[int(draws.integers(len(HOPS)))] * (1 if draws.random() < 0.5 else -1)
    moved = codes.pop(here)
    codes.insert(min(max(here + hop, 0), len(codes)), moved)
    return rank, codes


def _cost(found: Makespan) -> float:
    return found.span_s + TIES * found.total_s
