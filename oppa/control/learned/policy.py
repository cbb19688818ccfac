"""A learned policy as the control service asks it: behind each window, a batch for each worker."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Command, Decision, Limit, Policy, Situation, stay
from oppa.control.learned.actions import Actions
from oppa.control.learned.observation import observations
from oppa.control.learned.reward import sample_s
from oppa.control.learned.weights import Weights
from oppa.control.offers import Offers
from oppa.streams import stream

Array = NDArray[np.float64]

ONLINE_RATE = 3e-4
"""A tenth of that in learning: one run says little."""
USUAL = 0.9
"""How much of the usual reward stays from window to window."""


class LearnedPolicy(Policy):
    """Does what its weights prefer.

    Args:
        offers: Not looked at.
        weights: What was learned.
        online: Not 0: draw steps by their probabilities, and go on learning from what they bring. Then it has a memory.
        seed: Of what is drawn.
    """

    def __init__(self, offers: Offers | None = None, *, weights: Weights, online: int = 0, seed: int = 0) -> None:
        self._weights, self._online = weights, _Online(weights, seed) if online else None
        self.window = self.interval = weights.window

    def decide(self, situation: Situation) -> Decision:
        """Other batches for some."""
        if not situation.workers:
            return silent(situation)
        actions = self._weights.actions
        seen = observations(situation, actions)
        chosen = self._online.chosen(situation, seen) if self._online else self._weights.best(seen)
        return taken(situation, actions, chosen, "the learned policy")


class _Online:
    """Learns from each window once it has ended (DYNAMIX, Algorithm 1, lines 27 to 30); an advantage is what is above the usual reward."""

    def __init__(self, weights: Weights, seed: int) -> None:
        from oppa.control.learned.learner import Learner, module_of  # torch, which nothing else of a policy needs

        self._weights, self._seed = weights, seed
        self._learner = Learner(module_of(weights.layers), rate=ONLINE_RATE)
        self._before: tuple[Array, list[int]] | None = None
        self._first_sample_s = self._usual = 0.0

    def chosen(self, situation: Situation, seen: Array) -> list[int]:
        """The number of a step for each worker."""
        weights = self._weights
        self._first_sample_s = self._first_sample_s or sample_s(situation)
        rewards = weights.reward.of(situation, least=weights.actions.least, first_sample_s=self._first_sample_s)
        if self._before is not None and len(rewards) == len(self._before[1]):
            self._learner.update(*self._before, np.array(rewards) - self._usual)
        mean = float(np.mean(rewards))
        self._usual = mean if self._before is None else USUAL * self._usual + (1 - USUAL) * mean
        rows = weights.normalised(seen)
        likely = self._learner.probabilities(rows)
        lot = stream(self._seed, f"actions at {situation.samples}").random((len(rows), 1))
        chosen: list[int] = (likely.cumsum(1) > lot).argmax(1).tolist()
        self._before = rows, chosen
        return chosen


class ExploringPolicy(Policy):
    """Draws actions by lot, all alike: a run under it tells what others would have done (`oppa.control.learned.check`).

    Args:
        offers: Not looked at.
        weights: Whose actions and window these are.
        seed: Of what is drawn; the same situation is answered alike.
    """

    def __init__(self, offers: Offers | None = None, *, weights: Weights, seed: int = 0) -> None:
        self._actions, self._seed = weights.actions, seed
        self.window = self.interval = weights.window

    def decide(self, situation: Situation) -> Decision:
        """Other batches for some."""
        if not situation.workers:
            return silent(situation)
        return taken(situation, self._actions, self.drawn(situation), "the lot")

    def drawn(self, situation: Situation) -> list[int]:
        """The number of a step for each worker."""
        random = stream(self._seed, f"actions at {situation.samples}")
        return [int(number) for number in random.integers(len(self._actions.steps), size=len(situation.workers))]


def taken(situation: Situation, actions: Actions, chosen: Sequence[int], who: str) -> Decision:
    """What it means that somebody chose so, for each worker the number of a step."""
    before = tuple(worker.local_batch for worker in situation.workers)
    after = actions.after(before, chosen)
    if after == before:
        return stay(situation, f"{who} leaves all batches as they are")
    steps = ", ".join(f"{late - early:+d}" for early, late in zip(before, after, strict=True))
    configuration = dataclasses.replace(situation.configuration, global_batch=sum(after))
    return Decision(command=Command.SCALE_BS, configuration=configuration, local_batches=after, reason=f"{who} gives workers {steps}")


def silent(situation: Situation) -> Decision:
    """No-Op, where workers say nothing."""
    return stay(situation, "workers do not say how they do: only pure data parallelism has batches of their own", Limit.UNKNOWN)
