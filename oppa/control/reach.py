"""Restrict a policy to what a job can do: its trainer's abilities, and the user's bounds of the batch."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Literal

from oppa.control.decision import Decision, JobState, Policy
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Reach
from oppa.table.rows import same_strategy

Way = Literal["live", "restart"]
"""How a trainer changes: between two steps, or by a restart from a checkpoint."""


def way_of(before: Configuration, after: Configuration, reach: Reach) -> Way | None:
    """Return how a trainer changes between two configurations; None if it cannot. Bounds of the batch are not considered."""
    same_layout = same_strategy(before, after)
    larger, smaller = after.global_batch > before.global_batch, after.global_batch < before.global_batch
    batch = not (larger and reach.batch not in ("both", "up")) and not (smaller and reach.batch not in ("both", "down"))
    micro_batch = reach.micro_batch or after.micro_batch == before.micro_batch
    if same_layout and batch and micro_batch:
        return "live"
    if reach.restart and (reach.elastic or after.devices == before.devices):
        return "restart"
    return None


def outside(configuration: Configuration, reach: Reach) -> str:
    """Return how a batch exceeds the user's bounds; empty if it is within them."""
    batch, least, most = configuration.global_batch, reach.least_batch, reach.largest_batch
    if least is not None and batch < least:
        return f"batch {batch} is below `least_batch = {least}`"
    if most is not None and batch > most:
        return f"batch {batch} is above `largest_batch = {most}`"
    return ""


class ReachablePolicy(Policy):
    """Decides as another policy does for which the configurations that a job cannot reach are not buildable.

    Args:
        policy: The policy that decides.
        candidates: Configurations of its table.
        reach: Changes that are open to the job. A batch that can only grow comes back to no smaller one.
    """

    def __init__(self, policy: Policy, candidates: Iterable[Configuration], reach: Reach) -> None:
        self._policy, self._candidates, self._reach = policy, frozenset(candidates), reach
        self.measures, self.restless, self.interval, self.window = policy.measures, policy.restless, policy.interval, policy.window

    def decide(self, state: JobState) -> Decision:
        """Return what the job should do before the next step."""
        return self._policy.decide(self._from_present(state))

    def undo(self, state: JobState, came_from: Configuration) -> Decision | None:
        """Return a decision to revert the last change; None if the change is kept, or the trainer cannot revert it."""
        if _way(state.configuration, came_from, self._reach) is None:
            return None
        return self._policy.undo(self._from_present(state), came_from)

    def restarts(self, before: Configuration, after: Configuration) -> bool:
        """Return True if a change between two configurations takes time: between layouts, or by a restart."""
        return self._policy.restarts(before, after) or way_of(before, after, self._reach) == "restart"

    def _from_present(self, state: JobState) -> JobState:
        unreachable, restarting = _ways(state.configuration, self._candidates, self._reach)
        return dataclasses.replace(state, unbuildable=state.unbuildable | unreachable, restarting=restarting)


@functools.lru_cache(maxsize=32)
def _ways(
    present: Configuration, candidates: frozenset[Configuration], reach: Reach
) -> tuple[frozenset[Configuration], frozenset[Configuration]]:
    """Return the candidates that cannot be reached from a configuration, and those that take a restart.

    A table has thousands of candidates. So both are kept for the next decision, also that of a policy for a refined table.
    """
    ways = {each: _way(present, each, reach) for each in candidates}
    unreachable = frozenset(each for each, way in ways.items() if way is None)
    return unreachable, frozenset(each for each, way in ways.items() if way == "restart")


def _way(present: Configuration, wanted: Configuration, reach: Reach) -> Way | None:
    """Return how a trainer changes to a configuration; None if it cannot, or the user's bounds exclude it."""
    if wanted == present:
        return "live"
    return None if outside(wanted, reach) else way_of(present, wanted, reach)


def reachable(policy_of: Callable[[ThroughputIndex | None], Policy], reach: Reach) -> Callable[[ThroughputIndex | None], Policy]:
    """Return a factory of the same policy for a job to which these changes are open."""
    if reach == Reach():
        return policy_of

    def made(throughputs: ThroughputIndex | None) -> Policy:
        return ReachablePolicy(policy_of(throughputs), throughputs.configurations if throughputs else (), reach)

    return made
