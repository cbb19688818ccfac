"""Evaluate a learned policy on unseen workers, links and seeds, against static batches and batches in proportion to speed."""

import dataclasses
import statistics
from collections.abc import Sequence

from oppa.control.decision import Policy
from oppa.control.policies.proportional import ProportionalPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.rl.actions import Actions
from oppa.control.rl.episode import EpisodeTask, EvaluatedRun, evaluated_run
from oppa.control.rl.policy import LearnedPolicy
from oppa.control.rl.weights import Weights

SHARE = 0.98
"""Target accuracy of a run, as a share of the learning curve's final accuracy."""
RUNS = 20
"""Simulated runs of each policy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScore:
    """Holds the result of a policy over all runs."""

    name: str
    seconds: float | None
    """Median seconds until the target; None if at least half of the runs missed it."""
    of_static: float | None
    """Median ratio of its seconds to those of the best static size, over runs that both finished; None without any."""
    failed: int
    """Number of runs that missed the target."""


def scores(task: EpisodeTask, weights: Weights, *, seed: int, runs: int = RUNS) -> list[PolicyScore]:
    """Evaluate the best static size, the proportional policy and the learned policy.

    The proportional policy starts from the best static size, and from its own best size. The learned policy starts from the local batch of
    its training.
    """
    statics = {size: _evaluated_runs(task, StaticPolicy(), size, seed=seed, runs=runs) for size in sizes(task.actions)}
    best = min(statics, key=lambda size: _median(statics[size]) or float("inf"))
    shared = {size: _evaluated_runs(task, ProportionalPolicy(window=task.window), size, seed=seed, runs=runs) for size in statics}
    best_shared = min(shared, key=lambda size: _median(shared[size]) or float("inf"))
    policies = {
        f"static, {best} each": statics[best],
        f"proportional, {best} each": shared[best],
        f"proportional, {best_shared} each": shared[best_shared],
        "learned": _evaluated_runs(task, LearnedPolicy(weights=weights), task.local_batch, seed=seed, runs=runs),
    }
    return [_score(name, found, statics[best]) for name, found in policies.items()]


def sizes(actions: Actions) -> list[int]:
    """Return the static local batches to compare: doublings of the smallest one, within the bounds."""
    found, size = list[int](), actions.least
    while size <= actions.most:
        found.append(size)
        size *= 2
    return found


def _evaluated_runs(task: EpisodeTask, policy: Policy, local_batch: int, *, seed: int, runs: int) -> list[EvaluatedRun]:
    target = SHARE * task.curve.accuracy[-1]
    numbers = [1_000_000 + seed * runs + run for run in range(runs)]
    return [
        evaluated_run(task, policy, task.hosts(number, unseen=True), target=target, seed=number, local_batch=local_batch)
        for number in numbers
    ]


def _median(found: Sequence[EvaluatedRun]) -> float | None:
    arrived = [each.seconds if each.seconds is not None else float("inf") for each in found]
    median = statistics.median(arrived)
    return median if median < float("inf") else None


def _score(name: str, found: Sequence[EvaluatedRun], static: Sequence[EvaluatedRun]) -> PolicyScore:
    pairs = [(one.seconds, other.seconds) for one, other in zip(found, static, strict=True)]
    shares = [one / other for one, other in pairs if one is not None and other is not None]
    return PolicyScore(
        name=name,
        seconds=_median(found),
        of_static=statistics.median(shares) if shares else None,
        failed=sum(each.seconds is None for each in found),
    )
