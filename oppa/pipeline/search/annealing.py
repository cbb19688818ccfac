"""An order made better by small moves: a node goes a few places up or down its rank's list (Kirkpatrick et al. 1983).

What gets longer is kept with a probability that falls with how much longer, and with time. Lists that overstep a limit are not looked at.
"""

import math

import numpy as np

from oppa.pipeline.search.lists import ENDLESS, Length, length
from oppa.pipeline.search.task import Lists, Task

HOPS = (1, 1, 1, 2, 3, 5, 8)
"""How far a node moves; each as likely."""
TIES = 1e-3
"""What the sum of all spans counts beside the longest: a path through orders that are equally long."""


def anneal(task: Task, lists: Lists, *, moves: int, heat: float, draws: np.random.Generator) -> tuple[Length, list[list[int]]]:
    """The best lists found within so many moves, and their length.

    Args:
        task: What is asked.
        lists: Where to begin: lists that keep the limits.
        moves: How many to try.
        heat: At the beginning, what is longer by this share is taken one time in e.
        draws: Where chance comes from.
    """
    best_length = now_length = length(task, lists)
    best = now = [list(codes) for codes in lists]
    least_s, heat_s = max(task.busy_s), heat * best_length.span_s
    for move in range(moves):
        if best_length.span_s <= least_s * (1 + 1e-9):
            break
        rank, codes = _moved(now, draws)
        if codes == now[rank] or not task.fits(rank, codes):
            continue
        then = [*now[:rank], codes, *now[rank + 1 :]]
        then_length = length(task, then)
        longer_s = _cost(then_length) - _cost(now_length)
        if then_length != ENDLESS and (longer_s <= 0 or draws.random() < math.exp(-longer_s / (heat_s * (1 - move / moves)))):
            now, now_length = then, then_length
            if now_length < best_length:
                best, best_length = now, now_length
    return best_length, best


def _moved(lists: list[list[int]], draws: np.random.Generator) -> tuple[int, list[int]]:
    """A rank, and its list with one node elsewhere."""
    rank = int(draws.integers(len(lists)))
    codes = list(lists[rank])
    here = int(draws.integers(len(codes)))
    hop = HOPS[int(draws.integers(len(HOPS)))] * (1 if draws.random() < 0.5 else -1)
    node = codes.pop(here)
    codes.insert(min(max(here + hop, 0), len(codes)), node)
    return rank, codes


def _cost(found: Length) -> float:
    return found.span_s + TIES * found.total_s
