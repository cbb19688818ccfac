"""Search heuristically: try schedules by name and schedules built by rules, then improve the best of them.

The search is reproducible: its effort is counted in schedules, not in seconds, unless a caller ends it.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from oppa.pipeline.schedules import schedules_of
from oppa.pipeline.search.annealing import anneal
from oppa.pipeline.search.list_scheduling import Rules, construct, in_flight
from oppa.pipeline.search.makespan import Makespan, makespan
from oppa.pipeline.search.task import ScheduleTask, lists_of
from oppa.random_streams import stream

SHARES, MORE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Arguments of `in_flight` that are tried for the number of passes in flight."""
PATIENCE, IDLE = (0.25, 0.5, 0.75, 1.0), (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 1.0)
"""Values of `Rules` that are tried: the patience, and the idle time of a rank as a share of the busiest rank's work."""
HEATS = (0.01, 0.03, 0.06)
KEPT = 4
"""Number of schedules that are varied and improved."""
ROUNDS = 8
"""Number of rounds of annealing."""
NODES = 12_000_000
"""Number of actions that the whole search visits; it takes some seconds."""
TRIES, MOVES = 2_000, 15_000
"""Largest number of rules that are tried, and of moves in a round of annealing.

They bound the search of small pipelines, whose number of actions would allow more than helps.
"""

FEWEST = 24
"""Number of rules that are tried however large the pipeline is."""

Enough = Callable[[], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduleCandidate:
    """Holds a schedule as lists of codes, with its length."""

    makespan: Makespan
    lists: list[list[int]]


def heuristic(task: ScheduleTask, *, seed: int = 0, nodes: int = NODES, enough: Enough = lambda: False) -> ScheduleCandidate:
    """Return the best schedule found.

    Args:
        nodes: Number of actions to visit.
        enough: Returns True to end the search; called between schedules, and between rounds of annealing.
    """
    looks = nodes // task.size
    by_rules = _by_rules(task, tries=min(looks // 8, TRIES), draws=stream(seed, "rules"), enough=enough)
    begun = sorted([*_named(task), *by_rules], key=_length)
    moves, best = min(looks // 2 // ROUNDS, MOVES), begun[:KEPT]
    for turn in range(ROUNDS):
        if enough():
            break
        draws = stream(seed, f"anneal {turn}")
        best.append(
            ScheduleCandidate(*anneal(task, best[turn % len(begun[:KEPT])].lists, moves=moves, heat=HEATS[turn % len(HEATS)], draws=draws))
        )
    return min(best, key=_length)


def _length(candidate: ScheduleCandidate) -> Makespan:
    return candidate.makespan


def _named(task: ScheduleTask) -> Iterator[ScheduleCandidate]:
    """Yield the schedules by name that have the task's shape and keep its limits."""
    for _, found in schedules_of(task.shape):
        lists = lists_of(found)
        if all(task.fits(rank, codes) for rank, codes in enumerate(lists)):
            yield ScheduleCandidate(makespan(task, lists), lists)


def _by_rules(task: ScheduleTask, *, tries: int, draws: np.random.Generator, enough: Enough) -> list[ScheduleCandidate]:
    """Return the best schedules built by rules.

    The rules are first the same for all ranks: the numbers of passes in flight are tried first, then when gaps are filled. The best are
    then varied rank by rank. Few of these numbers are tried if `tries` is small, as for a large pipeline.
    """
    ranks, whole_s, made = task.shape.ranks, max(task.busy_s), _Made(task, enough)
    most = max(tries, FEWEST)
    first = list(itertools.product(SHARES, MORE, (0.003, 0.1)))
    for share, more, idle in first[:: -(-2 * len(first) // most) | 1]:  # an odd step meets both idle times
        made.add(Rules(in_flight(task, share, more), (0.5,) * ranks, (idle * whole_s,) * ranks))
    for rules in made.best(KEPT):
        for patience, idle in itertools.product(PATIENCE, IDLE):
            if len(made.candidates) >= most:
                break
            made.add(rules._replace(patience=(patience,) * ranks, idle_s=(idle * whole_s,) * ranks))
    for _ in range(tries - len(made.candidates)):
        if enough():
            break
        best = made.best(KEPT)
        made.add(_varied(best[int(draws.integers(len(best)))], whole_s, draws))
    return [made.candidates[rules] for rules in made.best(2 * KEPT)]


class _Made:
    """Collects the schedules that rules lead to, each built once."""

    def __init__(self, task: ScheduleTask, enough: Enough) -> None:
        self.task, self.candidates, self._enough = task, dict[Rules, ScheduleCandidate](), enough
        self._ranked: list[Rules] = []

    def add(self, rules: Rules) -> None:
        if rules in self.candidates or (self.candidates and self._enough()):
            return
        lists = construct(self.task, rules)
        self.candidates[rules] = ScheduleCandidate(makespan(self.task, lists), lists)
        bisect.insort(self._ranked, rules, key=lambda each: self.candidates[each].makespan)

    def best(self, count: int) -> list[Rules]:
        return self._ranked[:count]


def _varied(rules: Rules, whole_s: float, draws: np.random.Generator) -> Rules:
    """Return the rules with one or two random changes, each of one rank's."""
    ahead, patience, idle_s = list(rules.ahead), list(rules.patience), list(rules.idle_s)
    for _ in range(int(draws.integers(1, 3))):
        rank, what = int(draws.integers(len(ahead))), int(draws.integers(3))
        if what == 0:
            ahead[rank] = max(1.0, ahead[rank] + (1.0 if draws.random() < 0.5 else -1.0))
        elif what == 1:
            patience[rank] = PATIENCE[int(draws.integers(len(PATIENCE)))]
        else:
            idle_s[rank] = IDLE[int(draws.integers(len(IDLE)))] * whole_s
    return Rules(tuple(ahead), tuple(patience), tuple(idle_s))
