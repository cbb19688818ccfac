"""Implement stagewise batch size warm-up, common in large-model pretraining.

The stages are 2.5%, 2.5% and 95% of all samples (Lau et al. 2025, section 5).
"""

import itertools
import math

from oppa.control.decision import Decision, JobState, Limit, Policy, stay
from oppa.control.policies.layout_selection import Bounds, requirement, with_batch
from oppa.control.throughput_index import ThroughputIndex

SHARES = (0.025, 0.025, 0.95)
"""Share of all samples in each stage."""


class StagewisePolicy(Policy):
    """Uses a quarter of the largest batch, then half of it, then all of it, each in its fastest layout.

    Args:
        throughputs: Candidates to choose from.
        maximum: Upper bound of the last stage's batch, in sequences; by default the largest of the table.

    Raises:
        InputError: if the table has no batch up to `maximum`.
    """

    restless = True

    def __init__(self, throughputs: ThroughputIndex, *, maximum: float = math.inf) -> None:
        self._throughputs = throughputs
        self._maximum = throughputs.largest_batch(maximum)

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the batch of the present stage."""
        if state.remaining_samples is None:
            return stay(state, "the end of training, and so the length of a stage, is unknown", Limit.UNKNOWN)
        total = state.samples + state.remaining_samples
        ends = [share * total for share in itertools.accumulate(SHARES)]
        stage = sum(state.samples >= end for end in ends[:-1])
        wanted = self._maximum / 2 ** (len(SHARES) - 1 - stage)
        why = requirement(f"stage {stage + 1} of {len(SHARES)}", wanted)
        return with_batch(self._throughputs, state, wanted, why, Bounds(most=self._maximum))
