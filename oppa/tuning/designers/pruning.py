"""What cannot fit, since something that needs no more ran out of memory."""

from collections.abc import Iterable

import torch
from torch import Tensor

from oppa.cost.memory import parts
from oppa.cost.workload import Workload
from oppa.tuning.designer import Observation

EXACT = 1e-9


class Pruning:
    """Candidates each of whose parts of memory is at least as large as that of one that ran out of it."""

    def __init__(self, work: Workload) -> None:
        self._parts = parts(work)
        self.hopeless: Tensor = torch.zeros(len(work), dtype=torch.bool)
        """Shape (n,); those that ran out of memory are among them."""

    def learn(self, observations: Iterable[Observation]) -> None:
        """Rule out what needs no less."""
        for seen in observations:
            if seen.outcome == "out_of_memory":
                self.hopeless = self.hopeless | (self._parts >= self._parts[seen.candidate] * (1 - EXACT)).all(dim=1)
