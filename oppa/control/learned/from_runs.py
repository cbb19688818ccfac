"""What real runs teach a policy: an update behind each of them (DYNAMIX, Algorithm 1).

Steps are drawn by the policy's own probabilities while a run trains; its ledger then tells what each was worth. Of the cumulative reward G
of every window a linear baseline of what the worker said is subtracted, as one run is too few to tell luck from skill by.
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
from oppa.streams import stream
from oppa.training.ledger import Line

LEAST_WINDOWS = 5
RATE = 1e-3


class DrawingPolicy(Policy):
    """Draws steps by the probabilities that weights give them.

    Args:
        offers: Not looked at.
        seed: Of what is drawn; the same situation is answered alike.
    """

    def __init__(self, offers: Offers | None = None, *, weights: Weights, seed: int = 0) -> None:
        self._weights, self._seed = weights, seed
        self.window = self.interval = weights.window

    def decide(self, situation: Situation) -> Decision:
        """Other batches for some."""
        if not situation.workers:
            return silent(situation)
        return taken(situation, self._weights.actions, self.drawn(situation), "the policy that learns")

    def drawn(self, situation: Situation) -> list[int]:
        """The number of a step for each worker."""
        likely = self._weights.probabilities(observations(situation, self._weights.actions))
        lot = stream(self._seed, f"actions at {situation.samples}").random((len(likely), 1))
        return [int(number) for number in (likely.cumsum(1) > lot).argmax(1)]


class RunLearner:
    """Goes on from weights, run by run."""

    def __init__(self, weights: Weights) -> None:
        self._begun, self._learner, self._runs = weights, Learner(module_of(weights.layers), rate=RATE), 0

    @property
    def weights(self) -> Weights:
        """As they are by now."""
        learned = {"runs": self._begun.provenance.get("runs", 0) + self._runs}
        return dataclasses.replace(self._begun, layers=layers_of(self._learner.module), provenance={**self._begun.provenance, **learned})

    def taught(self, lines: Iterable[Line], drawn: Drawn) -> float:
        """Take in a run whose steps were `drawn` by a `DrawingPolicy`; what a worker's window was worth, in the mean.

        Raises:
            InputError: if it has fewer windows than LEAST_WINDOWS, or most did not go as was drawn.
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
