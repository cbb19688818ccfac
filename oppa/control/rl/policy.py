"""Adapt learned weights to the policy interface: after each window, choose a batch for each worker."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Decision, DecisionKind, JobState, Limit, Policy, stay
from oppa.control.rl.actions import Actions
from oppa.control.rl.observation import observations
from oppa.control.rl.reward import sample_s
from oppa.control.rl.weights import Weights
from oppa.control.throughput_index import ThroughputIndex
from oppa.random_streams import stream

Array = NDArray[np.float64]

ONLINE_RATE = 3e-4
"""Learning rate for online learning, a tenth of the default, because one run carries little information."""
USUAL = 0.9
"""Decay per window of the running mean of the reward."""


class LearnedPolicy(Policy):
    """Chooses the most likely step of its weights for each worker.

    Args:
        throughputs: Unused.
        weights: Weights of the learned policy.
        online: If not 0, draw steps by their probabilities, and continue learning from their rewards. The policy then keeps state.
        seed: Seed of the draws.
    """

    def __init__(self, throughputs: ThroughputIndex | None = None, *, weights: Weights, online: int = 0, seed: int = 0) -> None:
        self._weights, self._online = weights, _Online(weights, seed) if online else None
        self.window = self.interval = weights.window

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the next batch of each worker."""
        if not state.workers:
            return silent(state)
        actions = self._weights.actions
        seen = observations(state, actions)
        chosen = self._online.chosen(state, seen) if self._online else self._weights.best(seen)
        return taken(state, actions, chosen, "the learned policy")


class _Online:
    """Learns from each window after it has ended (DYNAMIX, Algorithm 1, lines 27 to 30).

    The advantage is the reward less its running mean.
    """

    def __init__(self, weights: Weights, seed: int) -> None:
        from oppa.control.rl.learner import Learner, module_of  # imports torch, which other policies do not need

        self._weights, self._seed = weights, seed
        self._learner = Learner(module_of(weights.layers), rate=ONLINE_RATE)
        self._before: tuple[Array, list[int]] | None = None
        self._first_sample_s = self._usual = 0.0

    def chosen(self, state: JobState, seen: Array) -> list[int]:
        """Learn from the window that has ended, then draw the number of a step for each worker."""
        weights = self._weights
        self._first_sample_s = self._first_sample_s or sample_s(state)
        rewards = weights.reward.of(state, least=weights.actions.least, first_sample_s=self._first_sample_s)
        if self._before is not None and len(rewards) == len(self._before[1]):
            self._learner.update(*self._before, np.array(rewards) - self._usual)
        mean = float(np.mean(rewards))
        self._usual = mean if self._before is None else USUAL * self._usual + (1 - USUAL) * mean
        rows = weights.normalised(seen)
        likely = self._learner.probabilities(rows)
        draw = stream(self._seed, f"actions at {state.samples}").random((len(rows), 1))
        chosen: list[int] = (likely.cumsum(1) > draw).argmax(1).tolist()
        self._before = rows, chosen
        return chosen


class ExploringPolicy(Policy):
    """Draws actions uniformly at random; its runs serve to evaluate other policies (`oppa.control.rl.off_policy_evaluation`).

    Args:
        throughputs: Unused.
        weights: Weights from which the actions and the window are taken.
        seed: Seed of the draws; the same state always gives the same actions.
    """

    def __init__(self, throughputs: ThroughputIndex | None = None, *, weights: Weights, seed: int = 0) -> None:
        self._actions, self._seed = weights.actions, seed
        self.window = self.interval = weights.window

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the next batch of each worker."""
        if not state.workers:
            return silent(state)
        return taken(state, self._actions, self.drawn(state), "the random policy")

    def drawn(self, state: JobState) -> list[int]:
        """Draw the number of a step for each worker."""
        random = stream(self._seed, f"actions at {state.samples}")
        return [int(number) for number in random.integers(len(self._actions.steps), size=len(state.workers))]


def taken(state: JobState, actions: Actions, chosen: Sequence[int], who: str) -> Decision:
    """Return the decision that follows from the number of a step for each worker.

    Args:
        state: State of the job.
        actions: Actions that the numbers refer to.
        chosen: Number of a step for each worker.
        who: Name of the policy, for the reason.
    """
    before = tuple(worker.local_batch for worker in state.workers)
    after = actions.after(before, chosen)
    if after == before:
        return stay(state, f"{who} changes no batch")
    steps = ", ".join(f"{late - early:+d}" for early, late in zip(before, after, strict=True))
    configuration = dataclasses.replace(state.configuration, global_batch=sum(after))
    return Decision(
        command=DecisionKind.SCALE_BS,
        configuration=configuration,
        local_batches=after,
        reason=f"{who} changes the workers' batches by {steps}",
    )


def silent(state: JobState) -> Decision:
    """Return a No-Op, because workers report no metrics."""
    return stay(state, "workers report no metrics: only pure data parallelism has local batches", Limit.UNKNOWN)
