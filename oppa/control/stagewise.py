"""Implement stagewise batch size warm-up, common in large-model pretraining.

The stages are 2.5%, 2.5% and 95% of all samples (Lau et al. 2025, section 5).
"""

import itertools
import math

from oppa.control.decision import Decision, Limit, Policy, Situation, stay
from oppa.control.offers import Offers
from oppa.control.picking import Bounds, asking, with_batch
from oppa.errors import InputError

SHARES = (0.025, 0.025, 0.95)
"""Share of all samples in each stage."""


class StagewisePolicy(Policy):
    """Uses a quarter of the largest batch, then half of it, then all of it, each in its fastest layout.

    Args:
        offers: Candidates to choose from.
        maximum: Upper bound of the last stage's batch, in sequences; by default the largest of the table.

    Raises:
        InputError: if the table has no batch up to `maximum`.
    """

    restless = True

    def __init__(self, offers: Offers, *, maximum: float = math.inf) -> None:
        if not (offers.batches <= maximum).any():
            raise InputError(f"`maximum = {maximum:g}` is below all batches of the table", hint=f"give at least {offers.batches.min():g}")
        self._offers = offers
        self._maximum = float(offers.batches[offers.batches <= maximum].max())

    def decide(self, situation: Situation) -> Decision:
        """Return a decision with the batch of the present stage."""
        if situation.remaining_samples is None:
            return stay(situation, "nobody knows where training ends, and so how long a stage is", Limit.UNKNOWN)
        total = situation.samples + situation.remaining_samples
        ends = [share * total for share in itertools.accumulate(SHARES)]
        stage = sum(situation.samples >= end for end in ends[:-1])
        wanted = self._maximum / 2 ** (len(SHARES) - 1 - stage)
        why = asking(f"stage {stage + 1} of {len(SHARES)}", wanted)
        return with_batch(self._offers, situation, wanted, why, Bounds(most=self._maximum))
