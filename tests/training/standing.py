"""Hold what a program of the rank server gets that runs on standing ranks."""

import gc
from types import SimpleNamespace

import torch.distributed as dist

from oppa.problem.configuration import Configuration
from oppa.training.parallel.mesh import Mesh, regrouped
from oppa.training.torch_internals import forget_shardings

KEPT = ("world", "rank", "device", "store", "layout", "timeout")
"""Names that the next mesh takes over from the one before."""


class Ranks:
    """This standing rank's place among its peers, in one layout after the other."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def regroup(self, configuration: Configuration) -> Mesh:
        """Return the mesh of this layout; the groups of the one before are gone."""
        gc.collect()
        self._mesh = regrouped(self._mesh, configuration)
        return self._mesh

    def rest(self) -> None:
        """Destroy all groups, whose threads would wake a hundred times a second."""
        self._mesh = SimpleNamespace(**{name: getattr(self._mesh, name) for name in KEPT})  # type: ignore[assignment]
        gc.collect()
        forget_shardings()
        if dist.is_initialized():
            dist.destroy_process_group()
