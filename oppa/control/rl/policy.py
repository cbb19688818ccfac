"""Adapt learned weights to the policy interface: after each window, choose a batch for each worker."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Decision, DecisionKind, JobState, Limit, Policy, stay
from oppa.control.rl.observation import observations
from oppa.control.rl.reward import sample_s
from oppa.control.rl.weights import Weights
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.random_streams import stream

Array = NDArray[np.float64]

ONLINE_RATE = 3e-4
"""Learning rate for online learning, a tenth of the default, because one run carries little information."""
USUAL = 0.9
"""Decay per window of the running mean of the reward."""


class WindowPolicy(Policy):
    """Chooses a step for each worker after each window; the subclasses state how."""

    name: str
    """Name of the policy in its reasons."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.window = self.interval = weights.window

    def chosen(self, state: JobState) -> Sequence[int]:
        """Return the number of a step for each worker; the same state always gives the same numbers, unless the policy learns."""
        raise NotImplementedError

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the next batch of each worker; a No-Op if the workers report no metrics."""
        if not state.workers:
            return stay(state, "workers report no metrics: only pure data parallelism has local batches", Limit.UNKNOWN)
        before = tuple(worker.local_batch for worker in state.workers)
        after = self._weights.actions.after(before, self.chosen(state))
        if after == before:
            return stay(state, f"{self.name} changes no batch")
        steps = ", ".join(f"{late - early:+d}" for early, late in zip(before, after, strict=True))
        return Decision(
            command=DecisionKind.SCALE_BS,
            configuration=dataclasses.replace(state.configuration, global_batch=sum(after)),
            local_batches=after,
            reason=f"{self.name} changes the workers' batches by {steps}",
        )


class LearnedPolicy(WindowPolicy):
    """Chooses the most likely step of its weights for each worker.

    Args:
        throughputs: Unused.
        weights: Weights of the learned policy.
        online: If not 0, draw steps by their probabilities, and continue learning from their rewards. The policy then keeps state.
        seed: Seed of the draws, from 0 on.

    Raises:
        InputError: if the seed is negative.
    """

    name = "the learned policy"

    def __init__(self, throughputs: ThroughputIndex | None = None, *, weights: Weights, online: int = 0, seed: int = 0) -> None:
        super().__init__(weights)
        _require_seed(seed)
        self._online = _Online(weights, seed) if online else None

    def chosen(self, state: JobState) -> Sequence[int]:
        """Return the most likely step of each worker, or the drawn one while the policy learns."""
        seen = observations(state, self._weights.actions)
        return self._online.chosen(state, seen) if self._online else self._weights.best(seen)


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
        chosen: list[int] = drawn(self._learner.probabilities(rows), draws_at(state, self._seed)).tolist()
        self._before = rows, chosen
        return chosen


class ExploringPolicy(WindowPolicy):
    """Draws actions uniformly at random; its runs serve to evaluate other policies (`oppa.control.rl.off_policy_evaluation`).

    Args:
        throughputs: Unused.
        weights: Weights from which the actions and the window are taken.
        seed: Seed of the draws, from 0 on.

    Raises:
        InputError: if the seed is negative.
    """

    name = "the random policy"

    def __init__(self, throughputs: ThroughputIndex | None = None, *, weights: Weights, seed: int = 0) -> None:
        super().__init__(weights)
        _require_seed(seed)
        self._seed = seed

    def chosen(self, state: JobState) -> list[int]:
        """Draw the number of a step for each worker."""
        steps = len(self._weights.actions.steps)
        return [int(number) for number in draws_at(state, self._seed).integers(steps, size=len(state.workers))]


def _require_seed(seed: int) -> None:
    """Raise InputError for a seed from which nothing can be drawn."""
    if seed < 0:
        raise InputError(f"`seed = {seed}` is negative", hint="use 0 or more")


def draws_at(state: JobState, seed: int) -> np.random.Generator:
    """Return the random numbers for a decision; the same state always has the same ones."""
    return stream(seed, f"actions at {state.samples}")


def drawn(probabilities: Array, random: np.random.Generator) -> NDArray[np.intp]:
    """Draw the number of an action for each row, by probabilities of shape (n, actions)."""
    return np.asarray((probabilities.cumsum(1) > random.random((len(probabilities), 1))).argmax(1))
