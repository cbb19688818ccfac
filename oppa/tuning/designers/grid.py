"""Search a grid as vendors' tuners do (NeMo's auto-configurator, the fast mode of DeepSpeed's autotuner): fixed order, memory pruning.

Little model parallelism comes first, and in each layout the largest micro-batch. Candidates that a memory estimate rules out are put off.
After an out-of-memory, so is every candidate of the same layout whose micro-batch is not smaller. Candidates that were put off come last,
as an estimate may be wrong.
"""

from collections.abc import Sequence, Set

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation, first_free, groups
from oppa.tuning.designers.analytic_memory import memory_bytes

LAYOUT = ("dp", "tp", "pp", "ep", "zero_stage", "model_chunks", "schedule", "recompute")
"""Parameters that decide memory, apart from the micro-batch; buckets and overlaps do not."""


class Grid:
    """Implements the designer `grid`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        tp, pp, self._micro_batch = (candidates.column(name) for name in ("tp", "pp", "micro_batch"))
        self._order = np.lexsort((-self._micro_batch, tp, tp * pp))
        self._layout = groups(candidates, LAYOUT)
        self._put_off = memory_bytes(problem, candidates) > problem.cluster.usable_bytes

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the first free candidate that may fit; if none is left, the first that was put off."""
        late = self._put_off[self._order]
        return first_free(np.concatenate([self._order[~late], self._order[late]]).tolist(), taken)

    def predict(self, candidate: int) -> None:
        """Return None, as a fixed order predicts nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Put off candidates that need at least as much memory as one that ran out of it."""
        for seen in observations:
            if seen.outcome == "out_of_memory":
                same = self._layout == self._layout[seen.candidate]
                self._put_off |= same & (self._micro_batch >= self._micro_batch[seen.candidate])
