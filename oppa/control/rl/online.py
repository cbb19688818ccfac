"""Continue training a policy on real runs, with one update after each run (DYNAMIX, Algorithm 1).

During a run, steps are drawn by the policy's own probabilities; the ledger of the run then gives their rewards. A linear baseline, fitted
to the workers' observations, is subtracted from the cumulative reward G of every window. One run alone cannot separate luck from skill.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from oppa.control.decision import JobState
from oppa.control.rl.learner import Array, Learner, cumulative, layers_of, module_of
from oppa.control.rl.observation import observations
from oppa.control.rl.off_policy_evaluation import Drawn, RecordedWindow, recorded, ridge
from oppa.control.rl.policy import WindowPolicy, drawn, draws_at
from oppa.control.rl.weights import Weights
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.training.parallel.supported_layouts import require_runnable
from oppa.training.run.ledger import Line

LEAST_WINDOWS = 5
"""Minimum number of windows for an update."""
RATE = 1e-3
"""Learning rate of the optimizer."""


class DrawingPolicy(WindowPolicy):
    """Draws steps by the probabilities of a learned policy.

    Args:
        throughputs: Unused.
        weights: Weights of the learned policy.
        seed: Seed of the draws.
    """

    name = "the online policy"

    def __init__(self, throughputs: ThroughputIndex | None = None, *, weights: Weights, seed: int = 0) -> None:
        super().__init__(weights)
        self._seed = seed

    def chosen(self, state: JobState) -> list[int]:
        """Draw the number of a step for each worker."""
        likely = self._weights.probabilities(observations(state, self._weights.actions))
        return [int(number) for number in drawn(likely, draws_at(state, self._seed))]


def require_teaching(problem: Problem, configuration: Configuration, window: int) -> None:
    """Raise InputError if episodes are too short, or their workers cannot have batches of their own."""
    share = configuration.global_batch // configuration.dp
    require_runnable(problem.model, configuration, [share] * configuration.dp)
    samples, least = problem.run_options.samples, (LEAST_WINDOWS + 1) * window * configuration.global_batch
    if configuration.dp == 1 or (samples is not None and samples < least):
        short = f"an episode of `samples = {samples}` is too short to learn from"
        alone = "one worker, `dp = 1`, has no batch split to learn"
        hint = f"use several workers, and at least {least} samples an episode"
        raise InputError(short if configuration.dp > 1 else alone, hint=hint)


def cumulative_rewards(windows: Sequence[RecordedWindow]) -> Array:
    """Return G of each worker in each window, shape (windows, workers). It ends where windows of the run were left out."""
    rewards = np.array([each.rewards for each in windows])
    gaps = [place for place, (one, other) in enumerate(itertools.pairwise(windows), 1) if other.number != one.number + 1]
    return np.concatenate([cumulative(each) for each in np.split(rewards, gaps)])


class RunLearner:
    """Updates weights after each run."""

    def __init__(self, weights: Weights) -> None:
        self._initial, self._learner, self._runs = weights, Learner(module_of(weights.layers), rate=RATE), 0

    @property
    def weights(self) -> Weights:
        """Return the present weights; their provenance counts the runs."""
        learned = {"runs": self._initial.provenance.get("runs", 0) + self._runs}
        return dataclasses.replace(
            self._initial, layers=layers_of(self._learner.module), provenance={**self._initial.provenance, **learned}
        )

    def update(self, lines: Iterable[Line], drawn: Drawn) -> float:
        """Update the weights from a run whose steps were drawn by a `DrawingPolicy`, and return its mean reward.

        Args:
            lines: Ledger of the run.
            drawn: Function that repeats the draw for a state.

        Raises:
            InputError: if the run has fewer than LEAST_WINDOWS windows, or most of its drawn steps were not carried out.
        """
        windows = recorded(lines, self._initial.actions, self._initial.reward, drawn)
        if len(windows) < LEAST_WINDOWS:
            hint = f"increase `train.samples`, or train with a shorter window than {self._initial.window} steps"
            raise InputError(f"an episode of {len(windows)} windows is too short to learn from", hint=hint)
        rows = np.concatenate([self._initial.normalised(observations(each.state, self._initial.actions)) for each in windows])
        chosen = [step for each in windows for step in each.drawn]
        rewards = np.array([each.rewards for each in windows])
        worth, seen = cumulative_rewards(windows).ravel(), np.column_stack((np.ones(len(rows)), rows))
        self._learner.update(rows, chosen, worth - seen @ ridge(seen, worth))
        self._runs += 1
        return float(rewards.mean())
