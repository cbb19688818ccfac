"""Clip gradients by their global norm, under any layout; pipelines of any length clip bitwise alike.

The norm of each parameter is computed separately, by one of the ranks that hold the same gradient. Shards of a parameter are added in
rank order. The sum over parameters is exact and rounded once (`math.fsum`). The distribution of parameters over stages therefore changes
no bit; their distribution over replicas and tensor-parallel peers does.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oppa.training.model.weights import local_gradient
from oppa.training.parallel.data_parallel import of_expert
from oppa.training.parallel.gradient_layout import GradientPlacement, layout_of_stages
from oppa.training.parallel.mesh import Mesh
from oppa.training.parallel.tied_embeddings import COPIES
from oppa.training.torch_internals import foreach_mul_, foreach_norm

SMALL = 1e-6
"""Added to the norm, as in `torch.nn.utils.clip_grad_norm_`."""


class Clipping:
    """Limits the norm of a step's gradient to `most` (Pascanu et al. 2013).

    Args:
        stages: Stages of this rank.
        mesh: Process groups of this rank.
        tied: Whether the first and the last stage hold the same embedding.
        most: Largest norm.
    """

    def __init__(self, stages: Sequence[nn.Module], mesh: Mesh, *, tied: bool, most: float) -> None:
        self._mesh, self._most = mesh, most
        layout = layout_of_stages(stages, mesh, tied=False)
        copies = 2 if tied and mesh.pp.size > 1 else 1
        self._group = layout.group
        self._own = {
            name.removeprefix("module."): (parameter, _share(name, placements[name], mesh) / (copies if _tied(name) else 1))
            for stage, placements in layout.parts
            for name, parameter in stage.named_parameters()
        }
        self._places: dict[str, int] = {}

    def clip(self) -> bool:
        """Scale the averaged gradients down if their norm is too large; all ranks call it.

        Returns:
            Whether the norm is finite; if not, the gradients stay.
        """
        named = {name: (local_gradient(parameter), share) for name, (parameter, share) in self._own.items() if parameter.grad is not None}
        squares = torch.zeros(len(self._order()), dtype=torch.float64, device=self._mesh.device)
        gradients = [gradient for gradient, _ in named.values()]
        if gradients:
            norms = torch.stack(foreach_norm(gradients, 2, dtype=torch.float64))
            shares = torch.tensor([share for _, share in named.values()], dtype=torch.float64, device=norms.device)
            squares[[self._places[name] for name in named]] = norms.square() * shares
        squares = self._summed(squares)
        norm = math.sqrt(math.fsum(squares.tolist())) if bool(squares.isfinite().all()) else math.inf
        if math.isfinite(norm) and (share := self._most / (norm + SMALL)) < 1 and gradients:
            foreach_mul_(gradients, share)
        return math.isfinite(norm)

    def _summed(self, squares: Tensor) -> Tensor:
        """Return the sums over all ranks, added in their order; zeros of ranks on other stages change nothing."""
        if self._group is None:
            return squares
        everyones = squares.new_empty(self._mesh.world * len(squares))
        dist.all_gather_single(everyones, squares, group=self._group)
        total = torch.zeros_like(squares)
        for own in everyones.view(self._mesh.world, -1):
            total += own
        return total

    def _order(self) -> dict[str, int]:
        """Return the position of each parameter of the model in the sums, the same on all ranks."""
        if not self._places:
            names: list[list[str]] = [[]] * self._mesh.pp.size
            if self._mesh.pp.group is None:
                names = [list(self._own)]
            else:
                dist.all_gather_object(names, list(self._own), group=self._mesh.pp.group)
            self._places = {name: place for place, name in enumerate(sorted({name for each in names for name in each}))}
        return self._places


def _tied(name: str) -> bool:
    return name.removeprefix("module.") in COPIES


def _share(name: str, placement: GradientPlacement, mesh: Mesh) -> float:
    """Return 1 on the first of the ranks that hold the same averaged gradient, 0 on the others."""
    alike = placement.replicas // placement.copies  # 1 for shards, or the number of their copies
    holders = mesh.copies if alike == mesh.copies.size else mesh.expert_dp if of_expert(name) else mesh.replicas
    replica = holders.index
    peer = mesh.tp.index if placement.copies > 1 else 0
    return float(replica == peer == 0)
