"""Add data parallelism to the stages of a rank: replicated parameters (DDP) or sharded training state (ZeRO, FSDP2).

zero_stage 0   DDP: gradients are averaged in buckets of `dp_bucket_mb`
zero_stage 1   the same, and each replica updates a share of the parameters (ZeroRedundancyOptimizer)
zero_stage 2   FSDP2: gradients and optimizer state are sharded; parameters are gathered once per step
zero_stage 3   FSDP2: parameters are sharded, too; each block's are gathered for its forward pass and again for its backward pass

With `dp_shard`, ZeRO shards over groups of that many replicas, and the groups hold copies (HSDP). FSDP2 scatters gradients in a group and
sums the scattered ones over the groups.

The bucket of an element determines the order in which a ring adds its gradients, and the stages determine DDP's buckets. With
`reduce_in_rank_order` of `[training]`, gradients are averaged in rank order after the backward pass. Pipelines of any length then compute
the same bits.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from oppa.problem.configuration import Configuration
from oppa.problem.training import Training
from oppa.training.model.moe import Experts
from oppa.training.model.stage import ModelStage
from oppa.training.parallel.mesh import Mesh, MeshAxis
from oppa.training.parallel.optimizer import groups_of, update_rule
from oppa.training.parallel.supported_layouts import splits_backward
from oppa.training.torch_internals import ZeroRedundancyOptimizer, leave_to_their_ranks

Sums = Callable[[Sequence[Tensor], MeshAxis], Iterator[Tensor]]
"""Yields the sum of each flat tensor over the replicas."""


def shard(stage: ModelStage, configuration: Configuration, mesh: Mesh) -> None:
    """Shard a stage on the meta device over the replicas in place, if the ZeRO stage requires it."""
    for block in stage.blocks.values():
        shard_module(block, configuration, mesh, stage.dtype)
    shard_module(stage, configuration, mesh, stage.dtype)


def shard_module(module: nn.Module, configuration: Configuration, mesh: Mesh, dtype: torch.dtype) -> None:
    """Shard the parameters of a module that are not sharded yet over the replicas, if the ZeRO stage requires it.

    Experts that are spread over ranks have fewer replicas, so they are sharded separately.

    Args:
        module: Module to shard in place.
        configuration: Configuration with the ZeRO stage.
        mesh: Process groups of this rank.
        dtype: Type in which parameters are gathered and used. Shards and the reduction of gradients stay in float32.
    """
    if configuration.zero_stage < 2 or mesh.replicas.group is None:
        return
    whole = set[nn.Parameter]()
    for experts in (part for part in module.modules() if isinstance(part, Experts) and mesh.ep.size > 1):
        if mesh.expert_dp.group is None:
            whole |= set(experts.parameters())
        elif not isinstance(experts, FSDPModule):
            _fully_shard(experts, configuration, mesh.expert_dp, mesh, whole, dtype)
    _fully_shard(module, configuration, mesh.replicas, mesh, whole, dtype)


def _fully_shard(
    module: nn.Module, configuration: Configuration, replicas: MeshAxis, mesh: Mesh, whole: set[nn.Parameter], dtype: torch.dtype
) -> None:
    assert replicas.group is not None
    # The layout is part of the name: DTensor caches by mesh, and on an equal mesh it would use the groups of an earlier layout.
    if replicas is mesh.replicas and mesh.copies.group is not None:
        assert mesh.shard.group is not None
        groups, names = [mesh.copies.group, mesh.shard.group], (f"copies_{mesh.layout}", f"dp_{mesh.layout}")
        numbers = torch.tensor(replicas.ranks).view(mesh.copies.size, mesh.shard.size)
        ranks = DeviceMesh.from_group(groups, mesh.device.type, numbers, mesh_dim_names=names)
    else:
        ranks = DeviceMesh.from_group(replicas.group, mesh.device.type, mesh_dim_names=(f"dp_{mesh.layout}",))
    # Inputs are not cast: rotations are float32, and the residual stream has the dtype already.
    lower = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = MixedPrecisionPolicy() if dtype == torch.float32 else lower
    gather_again = configuration.zero_stage == 3
    fully_shard(module, mesh=ranks, reshard_after_forward=gather_again, mp_policy=policy, ignored_params=whole or None)


def averages_after_backward(configuration: Configuration, training: Training) -> bool:
    """Return whether gradients are averaged after the whole backward pass, rather than by DDP during it."""
    return splits_backward(configuration) or training.reduce_in_rank_order


def replicate(stage: nn.Module, configuration: Configuration, mesh: Mesh, training: Training) -> nn.Module:
    """Wrap a stage that has its weights in DDP, if DDP averages its gradients; experts that are spread over ranks are excluded."""
    trained = any(parameter.requires_grad for parameter in stage.parameters())
    if configuration.zero_stage >= 2 or mesh.replicas.group is None or averages_after_backward(configuration, training) or not trained:
        return stage
    spread = [name for name, _ in stage.named_parameters() if mesh.ep.size > 1 and of_expert(name)]
    leave_to_their_ranks(stage, spread)  # type: ignore[no-untyped-call]
    return DistributedDataParallel(
        stage,
        process_group=mesh.replicas.group,
        device_ids=[mesh.device.index] if mesh.device.type == "cuda" else None,
        bucket_cap_mb=configuration.dp_bucket_mb,
        gradient_as_bucket_view=True,
        init_sync=False,  # the weights are equal already
        forward_sync_buffers=False,
    )


def optimizers_for(
    stages: Iterable[nn.Module], configuration: Configuration, mesh: Mesh, training: Training
) -> list[torch.optim.Optimizer]:
    """Return optimizers for all parameters of this rank; experts that are spread over ranks have a separate one."""
    return [
        _optimizer(parameters, configuration, mesh.shard if replicas is mesh.replicas else replicas, training)
        for parameters, replicas in _replicated(stages, mesh)
    ]


def _optimizer(parameters: list[nn.Parameter], configuration: Configuration, shards: MeshAxis, training: Training) -> torch.optim.Optimizer:
    make, options = update_rule(training)
    groups = groups_of(parameters, training)
    if configuration.zero_stage != 1 or shards.group is None:
        return make(groups, **options)
    return ZeroRedundancyOptimizer(groups, make, process_group=shards.group, parameters_as_bucket_view=True, **options)


def average_rest(stages: Iterable[nn.Module], configuration: Configuration, mesh: Mesh, training: Training) -> None:
    """Average the gradients that DDP and FSDP2 leave: those of spread experts, or all if they are averaged after the backward pass."""
    if configuration.zero_stage >= 2:
        return
    for parameters, replicas in _replicated(stages, mesh):
        by_hand = averages_after_backward(configuration, training) or replicas is not mesh.replicas
        if by_hand and replicas.group is not None:
            sums = sums_in_rank_order if training.reduce_in_rank_order else sums_of_all_reduce
            average(parameters, replicas, configuration.dp_bucket_mb * 2**20, sums)


def _replicated(stages: Iterable[nn.Module], mesh: Mesh) -> list[tuple[list[nn.Parameter], MeshAxis]]:
    """Return the parameters of this rank in groups, each with the axis of ranks that hold the same ones; none if it has no parameters."""
    named = [(name, parameter) for stage in stages for name, parameter in stage.named_parameters()]
    spread = [parameter for name, parameter in named if mesh.ep.size > 1 and of_expert(name)]
    dense = [parameter for name, parameter in named if mesh.ep.size == 1 or not of_expert(name)]
    return [(parameters, replicas) for parameters, replicas in ((dense, mesh.replicas), (spread, mesh.expert_dp)) if parameters]


def of_expert(name: str) -> bool:
    """Return whether a parameter, by its name, belongs to an expert, which may have fewer replicas than other parameters."""
    return ".experts." in name


@contextlib.contextmanager
def accumulating(module: nn.Module, configuration: Configuration, *, last: bool) -> Iterator[None]:
    """Keep gradients local during a micro-batch, unless it is the last one of the step."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        # ZeRO-2 keeps the gathered parameters from a step's first forward pass to its last backward pass.
        module.set_reshard_after_backward(last or configuration.zero_stage == 3)
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def average(parameters: Iterable[nn.Parameter], replicas: MeshAxis, bucket_bytes: float, sums: Sums) -> None:
    """Average gradients over the replicas in buckets of at most `bucket_bytes`, or of one gradient; all buckets run concurrently."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    buckets = _buckets(gradients, bucket_bytes)
    flats = [torch.cat([gradient.flatten() for gradient in bucket]) for bucket in buckets]
    for bucket, total in zip(buckets, sums(flats, replicas), strict=True):
        for gradient, mean in zip(bucket, total.div_(replicas.size).split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def sums_of_all_reduce(flats: Sequence[Tensor], replicas: MeshAxis) -> Iterator[Tensor]:
    """Yield the sum of each flat gradient over the replicas, in the backend's order of addition."""
    works = [dist.all_reduce(flat, group=replicas.group, async_op=True) for flat in flats]
    for flat, work in zip(flats, works, strict=True):
        work.wait()
        yield flat


def sums_in_rank_order(flats: Sequence[Tensor], replicas: MeshAxis) -> Iterator[Tensor]:
    """Yield the sum of each flat gradient over the replicas, with every element added in rank order.

    Each replica receives one share of all gradients, adds it up, and sends the sums to all. This moves as many bytes as a ring.
    """
    shares, scattered = [], []
    for flat in flats:
        padded = nn.functional.pad(flat, (0, -len(flat) % replicas.size))
        received = torch.empty_like(padded)
        scattered.append(dist.all_to_all_single(received, padded, group=replicas.group, async_op=True))
        shares.append(received)
    wholes, gathered = [], []
    for received, work in zip(shares, scattered, strict=True):
        work.wait()
        first, *others = received.chunk(replicas.size)
        for other in others:
            first += other
        whole = torch.empty_like(received)
        gathered.append(dist.all_gather_single(whole, first, group=replicas.group, async_op=True))
        wholes.append(whole)
    for flat, whole, work in zip(flats, wholes, gathered, strict=True):
        work.wait()
        yield whole[: len(flat)]


def _buckets(tensors: Iterable[Tensor], bucket_bytes: float) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if buckets[-1] and size + tensor.nbytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets
