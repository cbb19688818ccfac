"""The policy of Lau et al.: the batch grows when its gradient is too noisy (section 3), and the table says which layout runs it fastest.

    the batch that the test asks for    V / (eta^2 |g|^2), of the last step that was measured (eq. 3; V as in eq. 5 for `paper`)
    its next size                       the smallest of the table that is not below, within what the batch may grow by, and its maximum

It never shrinks, and it does not wait for the learning rate to have risen: both as the paper has it.
"""

import math

from oppa.control.decision import Decision, Limit, Policy, Situation, stay
from oppa.control.goodput_policy import GROWTH
from oppa.control.offers import Offers
from oppa.control.picking import Bounds, asking, with_batch
from oppa.errors import InputError
from oppa.training.norm_test import ETA, Form, asked_for, groups_of


class NormTestPolicy(Policy):
    """Takes the batch that the norm test asks for.

    Args:
        offers: To choose from.
        eta: Smaller ones ask for larger batches.
        maximum: Sequences that no batch has more than; the table's largest unless given.
        interval: Steps from one test to the next; between two nothing is measured.
        growth: The largest factor by which the batch may grow at once; the paper has no bound.
    """

    def __init__(
        self,
        offers: Offers,
        *,
        eta: float = ETA["unbiased"],
        maximum: float = math.inf,
        interval: int = 1,
        growth: float = GROWTH,
        form: Form = "unbiased",
    ) -> None:
        asked_for(1.0, eta)
        if interval < 1 or not growth > 1:
            raise InputError(f"`interval = {interval}`, `growth = {growth}`", hint="give at least 1 step, and a factor above 1")
        if not (offers.batches <= maximum).any():
            raise InputError(f"`maximum = {maximum:g}` is below all batches of the table", hint=f"give at least {offers.batches.min():g}")
        self._offers, self._eta, self._maximum, self._growth, self._form = offers, eta, maximum, growth, form
        self.interval, self.measures = interval, groups_of(form, workers=2)  # a job sees for itself whether it has several

    @classmethod
    def as_written(
        cls, offers: Offers, *, eta: float = ETA["paper"], maximum: float = math.inf, interval: int = 1, growth: float = math.inf
    ) -> "NormTestPolicy":
        """Eq. 5 as the paper writes it, and a batch that grows as far as it asks for."""
        return cls(offers, eta=eta, maximum=maximum, interval=interval, growth=growth, form="paper")

    def decide(self, situation: Situation) -> Decision:
        """The batch to train with, and the layout for it."""
        ratio = situation.variance_ratio if self._form == "unbiased" else situation.worker_variance_ratio
        if situation.health == "not_finite" or ratio is None:
            lacking = "the last step does not say how noisy its gradient was"
            if self._form == "paper" and situation.variance_ratio is not None:
                lacking = 'the job compares micro-batches, not workers: set `statistics = "workers"` in [train]'
            return stay(situation, lacking, Limit.UNHEALTHY)
        present, asked = situation.configuration.global_batch, asked_for(ratio, self._eta)
        why = asking("the norm test", asked)
        if asked <= present:
            why = f"batch {present} passes the norm test, which asks for {asked}"
            if not (self._offers.batches == present).any():
                return stay(situation, why)
        bounds = Bounds(growth=self._growth, least=present, most=max(self._maximum, present), measurable=True)
        return with_batch(self._offers, situation, max(asked, present), why, bounds)
