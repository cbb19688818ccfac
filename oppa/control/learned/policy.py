"""A learned policy as the control service asks it: behind each window, a batch for each worker."""

import dataclasses
from collections.abc import Sequence

from oppa.control.decision import Command, Decision, Limit, Policy, Situation, stay
from oppa.control.learned.actions import Actions
from oppa.control.learned.observation import observations
from oppa.control.learned.weights import Weights
from oppa.control.offers import Offers
from oppa.streams import stream


class LearnedPolicy(Policy):
    """Does what its weights prefer.

    Args:
        offers: Not looked at.
        weights: What was learned.
    """

    def __init__(self, offers: Offers | None = None, *, weights: Weights) -> None:
        self._weights = weights
        self.window = self.interval = weights.window

    def decide(self, situation: Situation) -> Decision:
        """Other batches for some."""
        if not situation.workers:
            return silent(situation)
        actions = self._weights.actions
        return taken(situation, actions, self._weights.best(observations(situation, actions)), "the learned policy")


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
        random = stream(self._seed, f"actions at {situation.samples}")
        drawn = random.integers(len(self._actions.steps), size=len(situation.workers)).tolist()
        return taken(situation, self._actions, drawn, "the lot")


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
