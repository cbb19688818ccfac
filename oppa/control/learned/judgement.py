"""How a learned policy does on workers, links and seeds that its learning never saw, against static sizes and shares by speed."""

import dataclasses
import statistics
from collections.abc import Sequence

from oppa.control.decision import Policy
from oppa.control.learned.actions import Actions
from oppa.control.learned.episode import Judged, Task, judged
from oppa.control.learned.policy import LearnedPolicy
from oppa.control.learned.weights import Weights
from oppa.control.proportional import ProportionalPolicy
from oppa.control.static import StaticPolicy

SHARE = 0.98
"""Of the curve's last accuracy: where a run has arrived."""
RUNS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A policy over all runs."""

    name: str
    seconds: float | None
    """Median; None where most runs did not arrive."""
    of_static: float | None
    """Median of its seconds, run by run, as a share of the best static size's."""
    failed: int
    """Runs that did not arrive."""


def scores(task: Task, weights: Weights, *, seed: int, runs: int = RUNS) -> list[Score]:
    """The best static size, shares of it by speed, and the learned policy, from the local batch that it was learned with."""
    statics = {size: _judged(task, StaticPolicy(), size, seed=seed, runs=runs) for size in sizes(task.actions)}
    best = min(statics, key=lambda size: _median(statics[size]) or float("inf"))
    shared = {size: _judged(task, ProportionalPolicy(window=task.window), size, seed=seed, runs=runs) for size in statics}
    best_shared = min(shared, key=lambda size: _median(shared[size]) or float("inf"))
    policies = {
        f"static, {best} each": statics[best],
        f"proportional, {best} each": shared[best],
        f"proportional, {best_shared} each": shared[best_shared],
        "learned": _judged(task, LearnedPolicy(weights=weights), task.local_batch, seed=seed, runs=runs),
    }
    return [_score(name, found, statics[best]) for name, found in policies.items()]


def sizes(actions: Actions) -> list[int]:
    """Static local batches: doublings within the bounds."""
    found, size = list[int](), actions.least
    while size <= actions.most:
        found.append(size)
        size *= 2
    return found


def _judged(task: Task, policy: Policy, local_batch: int, *, seed: int, runs: int) -> list[Judged]:
    target = SHARE * task.curve.accuracy[-1]
    numbers = [1_000_000 + seed * runs + run for run in range(runs)]
    return [
        judged(task, policy, task.hosts(number, unseen=True), target=target, seed=number, local_batch=local_batch) for number in numbers
    ]


def _median(found: Sequence[Judged]) -> float | None:
    arrived = [each.seconds if each.seconds is not None else float("inf") for each in found]
    median = statistics.median(arrived)
    return median if median < float("inf") else None


def _score(name: str, found: Sequence[Judged], static: Sequence[Judged]) -> Score:
    pairs = [(one.seconds, other.seconds) for one, other in zip(found, static, strict=True)]
    shares = [one / other for one, other in pairs if one is not None and other is not None]
    return Score(
        name=name,
        seconds=_median(found),
        of_static=statistics.median(shares) if shares else None,
        failed=sum(each.seconds is None for each in found),
    )
