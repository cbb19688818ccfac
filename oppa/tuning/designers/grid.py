"""Grid search as vendors' tuners do it (NeMo's auto-configurator, the fast mode of DeepSpeed's autotuner): a fixed order, pruned by memory.

Little model parallelism first, for each layout the largest micro-batch first. What an estimate says cannot fit is put off, and so is, after
an out-of-memory, whatever has no smaller a micro-batch in the same layout. What was put off comes last, as an estimate may be wrong.
"""

from collections.abc import Sequence, Set

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation, first_free, groups
from oppa.tuning.designers.analytic_memory import memory_bytes

LAYOUT = ("dp", "tp", "pp", "ep", "zero_stage", "model_chunks", "schedule", "recompute")
"""What decides memory beside the micro-batch; buckets and overlaps do not."""


class Grid:
    """The designer `grid`."""

    def __init__(self, problem: Problem, candidates: Candidates) -> None:
        tp, pp, self._micro_batch = (candidates.column(name) for name in ("tp", "pp", "micro_batch"))
        self._order = np.lexsort((-self._micro_batch, tp, tp * pp))
        self._layout = groups(candidates, LAYOUT)
        self._put_off = memory_bytes(problem, candidates) > problem.cluster.usable_bytes

    def suggest(self, taken: Set[int]) -> int | None:
        """The first free candidate that may fit; when none is left, the first that was put off."""
        late = self._put_off[self._order]
        return first_free(np.concatenate([self._order[~late], self._order[late]]).tolist(), taken)

    def predict(self, candidate: int) -> None:
        """An order expects nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Put off what needs at least as much as what ran out of memory."""
        for seen in observations:
            if seen.outcome == "out_of_memory":
                same = self._layout == self._layout[seen.candidate]
                self._put_off |= same & (self._micro_batch >= self._micro_batch[seen.candidate])
