"""Where a gradient is: which ranks hold the same one, so that sums over all ranks count everything once.

Of n ranks that hold the same, each counts an nth: tensor-parallel peers for norms and other whole parameters, replicas for the
gradients that DDP has averaged. What is sharded, by whomever, adds up.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from oppa.errors import InputError
from oppa.training.data_parallel import of_expert
from oppa.training.mesh import Mesh
from oppa.training.tied import COPIES
from oppa.training.weights import pieces_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a parameter's gradients lie across the ranks."""

    copies: int = 1
    """Ranks that see the same gradient of a micro-batch."""
    replicas: int = 1
    """Ranks that hold the same gradient when it has been averaged."""
    pooled: int = 1
    """Replicas whose micro-batches meet in one gradient: an expert's, of all ranks that send it tokens."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientLayout:
    """The modules of this rank, how their parameters are placed, and with whom to sum."""

    parts: Sequence[tuple[nn.Module, dict[str, Placement]]]
    device: torch.device
    group: dist.ProcessGroup | None = None
    replicas: int = 1
    """Ranks over which gradients are averaged."""
    alike: int = 1
    """Ranks that run the same micro-batches: tensor-parallel peers, and stages."""
    pools: tuple[int, ...] = (1,)
    """All values of `pooled` that any rank has: the groups of parameters whose micro-batches differ in size."""


def layout_of(model: nn.Module) -> GradientLayout:
    """Of one's own model: behind DDP, behind FSDP2 (`fully_shard`), or on one process.

    Raises:
        InputError: for a model that is sharded in another way.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    device = next(iter(named.values())).device
    if isinstance(model, DistributedDataParallel):
        size = dist.get_world_size(model.process_group)
        placements = {name: Placement(replicas=size) for name in named}
        return GradientLayout(parts=[(model, placements)], device=device, group=model.process_group, replicas=size)
    sharded = [parameter for parameter in named.values() if isinstance(parameter, DTensor)]
    if not sharded:
        return GradientLayout(parts=[(model, dict.fromkeys(named, Placement()))], device=device)
    mesh = sharded[0].device_mesh
    if not isinstance(model, FSDPModule) or mesh.ndim > 1 or len(sharded) < len(named):
        raise InputError("the model is neither behind DDP nor all behind FSDP2 on one mesh dimension", hint="call `fully_shard(model)`")
    size = mesh.size()
    return GradientLayout(parts=[(model, dict.fromkeys(named, Placement()))], device=device, group=mesh.get_group(), replicas=size)


def layout_of_stages(stages: Sequence[nn.Module], mesh: Mesh, *, tied: bool) -> GradientLayout:
    """Of the training core's own model.

    A tied embedding is left out, under every layout: its two gradients are on two stages, and the norm of their sum is on neither.
    """
    return GradientLayout(
        parts=[(stage, _placements(stage, mesh, tied)) for stage in stages],
        device=mesh.device,
        group=dist.group.WORLD if mesh.world > 1 else None,
        replicas=mesh.dp.size,
        alike=mesh.tp.size * mesh.pp.size,
        pools=(1, mesh.ep.size) if mesh.ep.size > 1 else (1,),
    )


def _placements(stage: nn.Module, mesh: Mesh, tied: bool) -> dict[str, Placement]:
    placements = {}
    for name, parameter in stage.named_parameters():
        if tied and name.removeprefix("module.") in COPIES:
            continue
        whole = sum(math.prod(piece.shape) for piece in pieces_of(stage, name)) == parameter.numel()
        copies = mesh.tp.size if whole else 1
        holders = mesh.expert_dp.size if of_expert(name) else mesh.dp.size
        same = 1 if isinstance(parameter, DTensor) else holders
        placements[name] = Placement(copies=copies, replicas=copies * same, pooled=mesh.dp.size // holders)
    return placements
