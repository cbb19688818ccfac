"""What a program of the rank server gets that runs on standing ranks."""

import gc

from oppa.problem.configuration import Configuration
from oppa.training.parallel.mesh import Mesh, regrouped


class Ranks:
    """This standing rank's place among its peers, in one layout after the other."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def regroup(self, configuration: Configuration) -> Mesh:
        """Return the mesh of this layout; the groups of the one before are gone."""
        gc.collect()
        self._mesh = regrouped(self._mesh, configuration)
        return self._mesh
