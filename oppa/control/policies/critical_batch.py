"""Implement the baseline policy of COPUS: the batch follows the critical batch size; layout and micro-batch stay fixed (section 6.1)."""

from collections.abc import Sequence

import numpy as np

from oppa.control.decision import Decision, DecisionKind, JobState, Limit, Policy, reject_unreliable, stay
from oppa.control.policies.goodput import GROWTH, cost_factor, require_growth
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.table.rows import same_strategy
from oppa.units import format_number

MARGIN, RESTART_MARGIN = 0.2, 0.35
"""Relative error of the critical batch size that must not change the batch back and forth, between two steps and by a restart.

The estimate deviates by about 10%, and a restart takes more than a change between two steps.
"""


class CriticalBatchPolicy(Policy):
    """Chooses the global batch closest to the critical batch size, among the table's rows with the present layout and micro-batch.

    It stays near the middle between two batches, where noise would change the batch back and forth.
    """

    def __init__(self, throughputs: ThroughputIndex, *, growth: float = GROWTH) -> None:
        require_growth(growth)
        self._throughputs, self._growth = throughputs, growth

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the batch to train with."""
        if (unreliable := reject_unreliable(state)) is not None:
            return unreliable
        assert state.noise_scale is not None
        present, critical = state.configuration, state.noise_scale
        fitting = (each for each in self._throughputs.configurations if each.micro_batch == present.micro_batch)
        alike = (each for each in fitting if same_strategy(each, present) and each not in state.unbuildable)
        own = sorted(alike, key=lambda each: each.global_batch)
        grown = self._growth * present.global_batch
        within = [each for each in own if each.global_batch <= grown and each.global_batch < state.too_large]
        if not within:
            return stay(state, f"the table has no batch for `{present.id}`", Limit.UNKNOWN)
        closest = _closest(own, critical)
        wanted = _closest(within, critical)
        limits = () if wanted == closest else (Limit.GROWTH if closest.global_batch > grown else Limit.SPIKE,)
        estimate = f"the critical batch size is {format_number(critical)} sequences"
        if wanted == present:
            return stay(state, f"{estimate}, and {present.global_batch} is the closest batch", *limits)
        hedged = _towards(present.global_batch, critical, RESTART_MARGIN if state.pays_for(wanted) else MARGIN)
        if _closest(within, hedged) == present:
            return stay(state, f"{estimate}: batch {wanted.global_batch} is hardly closer than {present.global_batch}", *limits)
        if state.pays_for(wanted) and not self._pays_off(state):
            return stay(
                state, f"{estimate}: a restart with batch {wanted.global_batch} would not pay off in the rest of the run", Limit.COST
            )
        reason = f"{estimate}: batch {present.global_batch} to {wanted.global_batch}"
        return Decision(command=DecisionKind.SCALE_BS, configuration=wanted, reason=reason, limits=limits)

    def _pays_off(self, state: JobState) -> bool:
        """Return True if the rest of the run is longer than a restart, or of unknown length."""
        current = self._throughputs.current(state.configuration, state.noise_scale or 1.0, state.steps_per_s)
        return current is None or cost_factor(state, current.samples_per_s) > 0


def _towards(batch: int, critical: float, margin: float) -> float:
    """Return the critical batch size that is closer to a batch by a relative margin."""
    return max(batch, critical / (1 + margin)) if critical > batch else min(batch, critical * (1 + margin))


def _closest(configurations: Sequence[Configuration], critical: float) -> Configuration:
    """Return the configuration whose batch differs least from `critical`.

    Batches are ascending, so that the smaller one wins a tie.
    """
    return configurations[int(np.argmin([abs(each.global_batch - critical) for each in configurations]))]
