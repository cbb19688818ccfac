"""Continue training a policy on real runs, with one update after each run (DYNAMIX, Algorithm 1).

During a run, steps are drawn by the policy's own probabilities; the ledger of the run then gives their rewards. A linear baseline, fitted
to the workers' observations, is subtracted from the cumulative reward G of every window. One run alone cannot separate luck from skill.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from oppa.control.decision import Decision, Policy, Situation
from oppa.control.learned.check import Drawn, recorded, ridge
from oppa.control.learned.learner import Learner, cumulative, layers_of, module_of
from oppa.control.learned.observation import observations
from oppa.control.learned.policy import silent, taken
from oppa.control.learned.weights import Weights
from oppa.control.offers import Offers
from oppa.errors import InputError
from oppa.random_streams import stream
from oppa.training.ledger import Line

LEAST_WINDOWS = 5
"""Minimum number of windows for an update."""
RATE = 1e-3
"""Learning rate of the optimizer."""


class DrawingPolicy(Policy):
    """Draws steps by the probabilities of a learned policy.

    Args:
        offers: Unused.
        weights: Weights of the learned policy.
        seed: Seed of the draws; the same situation always gives the same steps.
    """

    def __init__(self, offers: Offers | None = None, *, weights: Weights, seed: int = 0) -> None:
        self._weights, self._seed = weights, seed
        self.window = self.interval = weights.window

    def decide(self, situation: Situation) -> Decision:
        """Return a decision with the next batch of each worker."""
        if not situation.workers:
            return silent(situation)
        return taken(situation, self._weights.actions, self.drawn(situation), "the policy that learns")

    def drawn(self, situation: Situation) -> list[int]:
        """Draw the number of a step for each worker."""
        likely = self._weights.probabilities(observations(situation, self._weights.actions))
        lot = stream(self._seed, f"actions at {situation.samples}").random((len(likely), 1))
        return [int(number) for number in (likely.cumsum(1) > lot).argmax(1)]


class RunLearner:
    """Updates weights after each run."""

    def __init__(self, weights: Weights) -> None:
        self._begun, self._learner, self._runs = weights, Learner(module_of(weights.layers), rate=RATE), 0

    @property
    def weights(self) -> Weights:
        """Return the present weights; their provenance counts the runs."""
        learned = {"runs": self._begun.provenance.get("runs", 0) + self._runs}
        return dataclasses.replace(self._begun, layers=layers_of(self._learner.module), provenance={**self._begun.provenance, **learned})

    def taught(self, lines: Iterable[Line], drawn: Drawn) -> float:
        """Update the weights from a run whose steps were drawn by a `DrawingPolicy`, and return its mean reward.

        Args:
            lines: Ledger of the run.
            drawn: Function that repeats the draw for a situation.

        Raises:
            InputError: if the run has fewer than LEAST_WINDOWS windows, or most of its drawn steps were not carried out.
        """
        windows = recorded(lines, self._begun.actions, self._begun.reward, drawn)
        if len(windows) < LEAST_WINDOWS:
            hint = f"train for more `--samples`, or with a shorter window than {self._begun.window} steps"
            raise InputError(f"an episode of {len(windows)} windows teaches nothing", hint=hint)
        rows = np.concatenate([self._begun.normalised(observations(each.situation, self._begun.actions)) for each in windows])
        chosen = [step for each in windows for step in each.drawn]
        rewards = np.array([each.rewards for each in windows])
        worth, seen = cumulative(rewards).ravel(), np.column_stack((np.ones(len(rows)), rows))
        self._learner.update(rows, chosen, worth - seen @ ridge(seen, worth))
        self._runs += 1
        return float(rewards.mean())
