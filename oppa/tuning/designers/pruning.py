"""Rule out candidates that cannot fit, as another that needs no more memory ran out of it."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from oppa.cost.memory import first_stage, last_stage
from oppa.cost.workload import Workload
from oppa.problem.candidates import Candidates
from oppa.tuning.designer import Observation, groups

EXACT = 1e-9


class Pruning:
    """Finds candidates whose parts of memory are each at least as large as those of one that ran out of memory.

    With one micro-batch, gradients appear while activations are freed. With several, the activations of the last one coexist with the
    gradients of all before. So a candidate without accumulation surely needs as much as one with it only if its activations are larger by
    these gradients. Parameters that the cost model does not read may free any memory, so only candidates with equal ones are compared.
    """

    def __init__(self, work: Workload, candidates: Candidates, unknown: Sequence[str]) -> None:
        """Compute the parts of memory.

        Args:
            work: The candidates as the cost model reads them, shape (n,).
            unknown: Names of the parameters that it does not read.
        """
        stages = first_stage(work), last_stage(work)
        self._parts = torch.cat([stage.stacked() for stage in stages], dim=-1)
        """Parts of the first and the last stage, shape (n, parts of both)."""
        self._gradients = torch.stack([stage.gradients for stage in stages], dim=-1)
        self._activations = torch.stack([stage.sharded_activations for stage in stages], dim=-1)
        self._accumulates = work.layout.num_microbatches > 1
        self._unknown = torch.from_numpy(groups(candidates, unknown))
        self.infeasible: Tensor = torch.zeros(len(work), dtype=torch.bool)
        """Mask of the candidates that are ruled out, shape (n,), those that ran out of memory included."""
        self._tried = torch.zeros(len(work), dtype=torch.bool)

    @property
    def spared(self) -> int:
        """Return the number of candidates without a trial that are ruled out."""
        return int((self.infeasible & ~self._tried).sum())

    def learn(self, observations: Iterable[Observation]) -> None:
        """Rule out candidates that need at least as much as one that ran out of memory."""
        for seen in observations:
            self._tried[seen.candidate] = True
            if seen.outcome == "out_of_memory":
                self.infeasible = self.infeasible | self._needs_no_less(seen.candidate)

    def _needs_no_less(self, than: int) -> Tensor:
        spares = self._accumulates[than] & ~self._accumulates
        gradients = torch.where(spares[:, None], self._gradients[than], 0.0)
        enough = self._activations >= (self._activations[than] + gradients) * (1 - EXACT)
        parts = self._parts >= self._parts[than] * (1 - EXACT)
        return parts.all(dim=1) & enough.all(dim=1) & (self._unknown == self._unknown[than])
