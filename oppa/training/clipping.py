"""Gradients clipped to a norm: that of all of them, whatever the layout, and the same to the last bit in pipelines of any length.

Each parameter's norm is taken by itself, the ranks exchange them in the order of names, and the sum is the exact one, rounded once
(`math.fsum`). How parameters are spread over stages then changes no bit; how they are spread over replicas and tensor-parallel peers does.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oppa.training.gradient_layout import layout_of_stages
from oppa.training.mesh import Mesh
from oppa.training.tied import COPIES

SMALL = 1e-6
"""Added to the norm, as in `torch.nn.utils.clip_grad_norm_`."""


class Clipping:
    """Keeps the norm of a step's gradient at `most` (Pascanu et al. 2013).

    Args:
        stages: Of this rank.
        mesh: Where they are.
        tied: The first and the last stage hold the same embedding.
        most: The largest norm.
    """

    def __init__(self, stages: Sequence[nn.Module], mesh: Mesh, *, tied: bool, most: float) -> None:
        self._mesh, self._most = mesh, most
        layout = layout_of_stages(stages, mesh, tied=False)
        copies = 2 if tied and mesh.pp.size > 1 else 1
        self._group = layout.group
        self._own = {
            name.removeprefix("module."): (parameter, placements[name].replicas * (copies if name.removeprefix("module.") in COPIES else 1))
            for stage, placements in layout.parts
            for name, parameter in stage.named_parameters()
        }
        self._places: dict[str, int] = {}

    def clip(self) -> bool:
        """Scale the averaged gradients, where their norm is larger; all ranks call it. False: it is no number, and nothing changes."""
        named = {name: (_local(parameter), holders) for name, (parameter, holders) in self._own.items() if parameter.grad is not None}
        squares = torch.zeros(len(self._order()), dtype=torch.float64, device=self._mesh.device)
        gradients = [gradient for gradient, _ in named.values()]
        if gradients:
            norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float64))
            holders = torch.tensor([holders for _, holders in named.values()], dtype=torch.float64, device=norms.device)
            squares[[self._places[name] for name in named]] = norms.square() / holders
        if self._group is not None:
            dist.all_reduce(squares, group=self._group)
        norm = math.sqrt(math.fsum(squares.tolist())) if bool(squares.isfinite().all()) else math.inf
        if math.isfinite(norm) and (share := self._most / (norm + SMALL)) < 1 and gradients:
            torch._foreach_mul_(gradients, share)
        return math.isfinite(norm)

    def _order(self) -> dict[str, int]:
        """A place for each parameter of the model, the same on all ranks."""
        if not self._places:
            names: list[list[str]] = [[]] * self._mesh.pp.size
            if self._mesh.pp.group is None:
                names = [list(self._own)]
            else:
                dist.all_gather_object(names, list(self._own), group=self._mesh.pp.group)
            self._places = {name: place for place, name in enumerate(sorted({name for each in names for name in each}))}
        return self._places


def _local(parameter: nn.Parameter) -> Tensor:
    gradient: Tensor | None = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
