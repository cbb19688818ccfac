"""Restrict a policy to what a trainer can do from its present configuration: a batch that has only grown comes back to no smaller one."""

import dataclasses
from collections.abc import Iterable

from oppa.control.decision import Decision, JobState, Policy
from oppa.control.own_trainer.bounds import way_of
from oppa.control.own_trainer.contract import Abilities
from oppa.control.policy_choice import MakePolicy
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration


class ReachablePolicy(Policy):
    """Decides as another policy does for which the configurations that a trainer cannot reach are not buildable.

    Args:
        policy: The policy that decides.
        candidates: Configurations of its table.
        able: What the trainer declares.
    """

    def __init__(self, policy: Policy, candidates: Iterable[Configuration], able: Abilities) -> None:
        self._policy, self._candidates, self._able = policy, frozenset(candidates), able
        self.measures, self.restless, self.interval, self.window = policy.measures, policy.restless, policy.interval, policy.window

    def decide(self, state: JobState) -> Decision:
        """Return what the job should do before the next step."""
        return self._policy.decide(self._from_present(state))

    def undo(self, state: JobState, came_from: Configuration) -> Decision | None:
        """Return a decision to revert the last change; None if the change is kept, or the trainer cannot revert it."""
        return None if self._is_out_of_reach(state, came_from) else self._policy.undo(self._from_present(state), came_from)

    def _from_present(self, state: JobState) -> JobState:
        unreachable = {each for each in self._candidates if self._is_out_of_reach(state, each)}
        return dataclasses.replace(state, unbuildable=state.unbuildable | unreachable)

    def _is_out_of_reach(self, state: JobState, configuration: Configuration) -> bool:
        return way_of(state.configuration, configuration, self._able) is None


def reachable(make: MakePolicy, able: Abilities) -> MakePolicy:
    """Return a function that makes the same policy for a trainer with these abilities."""

    def made(throughputs: ThroughputIndex | None) -> Policy:
        return ReachablePolicy(make(throughputs), throughputs.configurations if throughputs else (), able)

    return made
