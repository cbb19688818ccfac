"""What cannot fit, since something that needs no more ran out of memory."""

from collections.abc import Iterable

import torch
from torch import Tensor

from oppa.cost.memory import PARTS, parts
from oppa.cost.workload import Workload
from oppa.tuning.designer import Observation

EXACT = 1e-9


class Pruning:
    """Candidates each of whose parts of memory is at least as large as that of one that ran out of it.

    Where a step has one micro-batch, gradients come as activations go; where it has several, the last one's activations lie beside the
    gradients of all before. So one without accumulation needs no less than one with it only if its activations are larger by these.
    """

    def __init__(self, work: Workload) -> None:
        self._parts = parts(work)
        self._accumulates = work.layout.num_microbatches > 1
        self.hopeless: Tensor = torch.zeros(len(work), dtype=torch.bool)
        """Shape (n,); those that ran out of memory are among them."""

    def learn(self, observations: Iterable[Observation]) -> None:
        """Rule out what needs no less."""
        for seen in observations:
            if seen.outcome == "out_of_memory":
                self.hopeless = self.hopeless | self._needs_no_less(seen.candidate)

    def _needs_no_less(self, than: int) -> Tensor:
        needed = self._parts[than]
        spares = self._accumulates[than] & ~self._accumulates
        beside = torch.where(spares[:, None], _column("gradients", needed), 0.0)
        enough = _column("sharded", self._parts) >= (_column("sharded", needed) + beside) * (1 - EXACT)
        return (self._parts >= needed * (1 - EXACT)).all(dim=1) & enough.all(dim=1)


def _column(part: str, parts: Tensor) -> Tensor:
    """One of PARTS, of the first and of the last stage, shape (..., 2)."""
    return torch.as_tensor(parts.unflatten(-1, (2, len(PARTS))).select(-1, PARTS.index(part)))
