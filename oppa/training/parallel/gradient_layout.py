"""Describe which ranks hold the same gradient, so that sums over all ranks count every element once.

If n ranks hold the same gradient, each counts 1 / n of it. These are tensor-parallel peers for norms and other whole parameters, and
replicas for gradients that DDP has averaged. Where its rank among them is known, each replica counts a part of its own instead, so that
less is read. Shards of any kind add up.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from oppa.errors import InputError
from oppa.training.model.weights import pieces_of
from oppa.training.parallel.data_parallel import of_expert
from oppa.training.parallel.mesh import Mesh
from oppa.training.parallel.tied_embeddings import COPIES
from oppa.training.torch_internals import divide_factors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientPlacement:
    """Describes the distribution of a parameter's gradients over the ranks."""

    copies: int = 1
    """Number of ranks with the same gradient of a micro-batch."""
    replicas: int = 1
    """Number of ranks with the same averaged gradient."""
    holder: int | None = None
    """Index of this rank among the `replicas`, each of which then measures a part of the averaged gradient; None: each measures all."""
    pooled: int = 1
    """Number of replicas whose micro-batches contribute to one gradient; for an expert, the ranks that send it tokens."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientLayout:
    """Holds the modules of this rank, the placements of their parameters, and the group to sum over."""

    parts: Sequence[tuple[nn.Module, dict[str, GradientPlacement]]]
    device: torch.device
    group: dist.ProcessGroup | None = None
    replicas: int = 1
    """Number of ranks over which gradients are averaged."""
    divisor: float | None = None
    """Number by which the sum of gradients over ranks is divided; None: by `replicas`."""
    alike: int = 1
    """Number of ranks that run the same micro-batches: tensor-parallel peers times pipeline ranks times parts of a sequence."""
    pools: tuple[int, ...] = (1,)
    """All values of `pooled` on any rank; each is a group of parameters with its own size of micro-batches."""
    averaged: Callable[[], Sequence[Tensor]] | None = None
    """Returns this rank's parts of the averaged gradients, where the parameters do not have them."""


def layout_of(model: nn.Module) -> GradientLayout:
    """Return the gradient layout of a user's model under DDP, FSDP2 or HSDP (`fully_shard`) or DeepSpeed, or on one process.

    Raises:
        InputError: if the model is sharded in another way, is not wrapped although several ranks train, or is all frozen.
    """
    if type(model).__module__.partition(".")[0] == "deepspeed":
        return _layout_of_engine(model)
    inner = getattr(model, "_orig_mod", None)  # of `torch.compile`; a wrapper with parts that Accelerate has compiled has one, too
    if inner is not None and not isinstance(model, (DistributedDataParallel, FSDPModule)):
        return layout_of(inner)
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not named:
        raise InputError("no parameter of the model requires a gradient", hint="measure the model after its parameters are unfrozen")
    device = next(iter(named.values())).device
    if isinstance(model, DistributedDataParallel):
        size = dist.get_world_size(model.process_group)
        placement = GradientPlacement(replicas=size, holder=dist.get_rank(model.process_group))
        return GradientLayout(parts=[(model, dict.fromkeys(named, placement))], device=device, group=model.process_group, replicas=size)
    sharded = [parameter for parameter in named.values() if isinstance(parameter, DTensor)]
    if not sharded and not (dist.is_initialized() and dist.get_world_size() > 1):
        return GradientLayout(parts=[(model, dict.fromkeys(named, GradientPlacement()))], device=device)
    if not isinstance(model, FSDPModule) or len(sharded) < len(named) or not all(map(_is_data_parallel, sharded)):
        cause = "the model is neither wrapped in DDP nor entirely in FSDP2 alone"
        raise InputError(cause, hint="measure what `DistributedDataParallel(model)` or `fully_shard(model)` returns")
    mesh = sharded[0].device_mesh
    group, copies = (mesh.get_group(), 1) if mesh.ndim == 1 else (_whole_world(mesh), mesh.size(0))
    placement = GradientPlacement(replicas=copies, holder=None if mesh.ndim == 1 else mesh.get_local_rank(0))
    return GradientLayout(
        parts=[(model, dict.fromkeys(named, placement))], device=device, group=group, replicas=mesh.size(), divisor=_divisor_of(model)
    )


def _layout_of_engine(engine: Any) -> GradientLayout:
    """Return the gradient layout of a DeepSpeed engine: under ZeRO, its optimizer has the averaged gradients, in shards."""
    has_parts = engine.zero_optimization_stage() > 0
    obstacles = {
        "a pipeline": type(engine).__name__ == "PipelineEngine",
        "tensor parallelism": engine.autotp_size() > 1,
        "sequence parallelism": engine.sequence_parallel_size > 1,
        "experts": engine.has_moe_layers,
        "an optimizer on the host": engine.zero_offload_optimizer() is not None,
        f"the optimizer {type(engine.optimizer).__name__}": has_parts and not hasattr(engine.optimizer, "averaged_gradients"),
    }
    if found := [name for name, present in obstacles.items() if present]:
        raise InputError(f"the engine of DeepSpeed has {found[0]}", hint="gradients are measured under ZeRO 0 to 3 on devices alone")
    named = {name: parameter for name, parameter in engine.module.named_parameters() if parameter.requires_grad}
    optimizer, group = engine.optimizer, engine.data_parallel_group
    placement = GradientPlacement(replicas=engine.dp_world_size, holder=dist.get_rank(group))

    def parts() -> list[Tensor]:
        return [part for group in optimizer.averaged_gradients.values() for part in group or ()]

    return GradientLayout(
        parts=[(engine.module, dict.fromkeys(named, placement))],
        device=torch.device(engine.device),
        group=group,
        replicas=engine.dp_world_size,
        averaged=parts if has_parts else None,
    )


def _divisor_of(model: nn.Module) -> float | None:
    """Return the number by which FSDP2 divides all gradients, if the user states one; raises InputError if there are several."""
    factors = divide_factors(model)
    if len(factors) > 1:
        stated = ", ".join(sorted("unset" if factor is None else f"{factor:g}" for factor in factors))
        raise InputError(
            f"parts of the model have different gradient divide factors: {stated}",
            hint="call `set_gradient_divide_factor` with one factor on each FSDP module",
        )
    return next(iter(factors), None)


def _is_data_parallel(parameter: DTensor) -> bool:
    """Return whether FSDP alone shards a parameter: over one dimension, or under HSDP after one of replicas."""
    *others, _ = parameter.placements
    return not others or (len(others) == 1 and others[0].is_replicate())


def _whole_world(mesh: DeviceMesh) -> dist.ProcessGroup:
    world = dist.group.WORLD
    if world is None or mesh.size() < world.size():
        raise InputError(f"`{mesh}` of HSDP is not of all ranks", hint="measure a model whose replicas and shards are all of the ranks")
    return world


def layout_of_stages(stages: Sequence[nn.Module], mesh: Mesh, *, tied: bool) -> GradientLayout:
    """Return the gradient layout of the training core's stages.

    A tied embedding is left out under every layout: its two gradients are on two stages, and neither has the norm of their sum.
    """
    return GradientLayout(
        parts=[(stage, _placements(stage, mesh, tied=tied)) for stage in stages],
        device=mesh.device,
        group=dist.group.WORLD if mesh.world > 1 else None,
        replicas=mesh.replicas.size,
        alike=mesh.tp.size * mesh.pp.size * mesh.cp.size,
        pools=(1, mesh.ep.size) if mesh.ep.size > 1 else (1,),
    )


def _placements(stage: nn.Module, mesh: Mesh, *, tied: bool) -> dict[str, GradientPlacement]:
    placements = {}
    for name, parameter in stage.named_parameters():
        if tied and name.removeprefix("module.") in COPIES:
            continue
        whole = sum(math.prod(piece.shape) for piece in pieces_of(stage, name)) == parameter.numel()
        copies = mesh.tp.size if whole else 1
        holders = mesh.expert_dp.size if of_expert(name) else mesh.replicas.size
        same = mesh.copies.size if isinstance(parameter, DTensor) else holders
        placements[name] = GradientPlacement(copies=copies, replicas=copies * same, pooled=mesh.replicas.size // holders)
    return placements
