"""Implement the policy of Lau et al.: grow the batch when its gradient is too noisy (section 3), in its fastest layout from the table.

    required batch    V / (eta^2 |g|^2), of the last step that was measured (eq. 3; V as in eq. 5 for `paper`)
    next batch        the smallest of the table not below it, up to the growth limit and the maximum

The batch never shrinks, and the policy does not wait for the learning-rate warm-up. The learning rate follows the batch only if the job
states a rule. All three are as in the paper (the last in tables 5 to 7). A batch at which the loss rose is left for the largest below it.
"""

import math

from oppa.control.decision import Decision, JobState, Limit, Policy, stay
from oppa.control.policies.goodput import GROWTH, require_growth
from oppa.control.policies.layout_selection import Bounds, requirement, with_batch
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.training.statistics.norm_test import ETA, Form, groups_of, required_batch


class NormTestPolicy(Policy):
    """Chooses the batch that the norm test requires.

    Args:
        throughputs: Candidates to choose from.
        eta: Threshold of the test; a smaller value requires larger batches.
        maximum: Largest batch in sequences; by default the largest of the table.
        interval: Steps between two tests; nothing is measured in between.
        growth: Largest factor by which the batch may grow in one decision; the paper has no limit.
        form: `unbiased` compares micro-batches, `paper` compares workers if there are several (eq. 5).

    Raises:
        InputError: if an argument is out of range, or the table has no batch up to `maximum`.
    """

    scaling = "none"

    def __init__(
        self,
        throughputs: ThroughputIndex,
        *,
        eta: float = ETA["unbiased"],
        maximum: float = math.inf,
        interval: int = 1,
        growth: float = GROWTH,
        form: Form = "unbiased",
    ) -> None:
        required_batch(1.0, eta)
        require_growth(growth)
        if interval < 1:
            raise InputError(f"`interval = {interval}` is out of range", hint="give at least 1 step")
        throughputs.largest_batch(maximum)
        self._throughputs, self._eta, self._maximum, self._growth, self._form = throughputs, eta, maximum, growth, form
        self.interval, self.measures = interval, groups_of(form, workers=2)  # the job itself checks if it has several workers

    @classmethod
    def as_written(
        cls,
        throughputs: ThroughputIndex,
        *,
        eta: float = ETA["paper"],
        maximum: float = math.inf,
        interval: int = 1,
        growth: float = math.inf,
    ) -> "NormTestPolicy":
        """Build the policy with eq. 5 as the paper writes it, and without a growth limit."""
        return cls(throughputs, eta=eta, maximum=maximum, interval=interval, growth=growth, form="paper")

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the batch to train with and its layout."""
        ratio = state.variance_ratio if self._form == "unbiased" else state.worker_variance_ratio
        if state.health == "not_finite" or ratio is None:
            lacking = "the gradient noise of the last step was not measured"
            if self._form == "paper" and state.variance_ratio is not None:
                lacking = (
                    'the job compares micro-batches, not workers: set `statistics = "workers"` in [train]; '
                    'a trainer of your own needs `GradientStatistics(model, over="workers")` instead'
                )
            return stay(state, lacking, Limit.UNHEALTHY)
        present, required = state.configuration.global_batch, required_batch(ratio, self._eta)
        why = requirement("the norm test", required)
        if required <= present:
            why = f"batch {present} passes the norm test, which requires {required}"
            if not (self._throughputs.batches == present).any():
                return stay(state, why)
        least = present
        if state.is_too_large:
            why, least = f"{why}, and the loss rose at batch {state.too_large:g}", 0
        in_two = state.configuration.has_one_micro_batch  # and was measured, so the trainer takes such a step in two
        bounds = Bounds(growth=self._growth, least=least, most=max(self._maximum, present), measurable=not in_two)
        return with_batch(self._throughputs, state, max(required, present), why, bounds)
