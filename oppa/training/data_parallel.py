"""Data parallelism around the stages that a rank holds: replicas kept equal (DDP), or states sharded (ZeRO, FSDP2).

zero_stage 0   DDP, gradients averaged in buckets of `dp_bucket_mb`
zero_stage 1   the same, and each replica updates a share of the parameters (ZeroRedundancyOptimizer)
zero_stage 2   FSDP2: gradients and optimizer state sharded; parameters gathered once per step
zero_stage 3   FSDP2: parameters too, gathered for each block's forward and again for its backward pass
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from oppa.problem.configuration import Configuration
from oppa.problem.training import Training
from oppa.training.experts import Experts
from oppa.training.mesh import Axis, Mesh
from oppa.training.model import Stage
from oppa.training.optimizer import update_rule
from oppa.training.rules import splits_backward


def shard(stage: Stage, configuration: Configuration, mesh: Mesh) -> None:
    """Split a stage that is still on the meta device over the replicas, in place, where the ZeRO stage asks for it."""
    for block in stage.blocks.values():
        shard_module(block, configuration, mesh)
    shard_module(stage, configuration, mesh)


def shard_module(module: nn.Module, configuration: Configuration, mesh: Mesh) -> None:
    """Split over the replicas what of a module is not split yet; experts, which have fewer replicas, by themselves."""
    if configuration.zero_stage < 2 or mesh.dp.group is None:
        return
    whole = set[nn.Parameter]()
    for experts in (part for part in module.modules() if isinstance(part, Experts) and mesh.ep.size > 1):
        if mesh.expert_dp.group is None:
            whole |= set(experts.parameters())
        elif not isinstance(experts, FSDPModule):
            _fully_shard(experts, configuration, mesh.expert_dp, mesh, whole)
    _fully_shard(module, configuration, mesh.dp, mesh, whole)


def _fully_shard(module: nn.Module, configuration: Configuration, replicas: Axis, mesh: Mesh, whole: set[nn.Parameter]) -> None:
    assert replicas.group is not None
    # The layout is part of the name: DTensor remembers what it did on equal meshes, and would take the groups of a layout that is gone.
    ranks = DeviceMesh.from_group(replicas.group, mesh.device.type, mesh_dim_names=(f"dp_{mesh.layout}",))
    fully_shard(module, mesh=ranks, reshard_after_forward=configuration.zero_stage == 3, ignored_params=whole or None)


def replicate(stage: nn.Module, configuration: Configuration, mesh: Mesh) -> nn.Module:
    """A stage with its weights, whose backward pass averages gradients over the replicas, but for experts that are spread."""
    trained = any(parameter.requires_grad for parameter in stage.parameters())
    if configuration.zero_stage >= 2 or mesh.dp.group is None or splits_backward(configuration) or not trained:
        return stage
    spread = [name for name, _ in stage.named_parameters() if mesh.ep.size > 1 and of_expert(name)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(stage, spread)
    return DistributedDataParallel(
        stage,
        process_group=mesh.dp.group,
        device_ids=[mesh.device.index] if mesh.device.type == "cuda" else None,
        bucket_cap_mb=configuration.dp_bucket_mb,
        gradient_as_bucket_view=True,
        init_sync=False,  # the weights are equal already
        forward_sync_buffers=False,
    )


def optimizers_for(
    stages: Iterable[nn.Module], configuration: Configuration, mesh: Mesh, training: Training
) -> list[torch.optim.Optimizer]:
    """Over all parameters of this rank. Experts that are spread have one of their own."""
    return [_optimizer(parameters, configuration, replicas, training) for parameters, replicas in _replicated(stages, mesh)]


def _optimizer(parameters: list[nn.Parameter], configuration: Configuration, replicas: Axis, training: Training) -> torch.optim.Optimizer:
    make, options = update_rule(training)
    if configuration.zero_stage != 1 or replicas.group is None:
        return make(parameters, **options)
    return ZeroRedundancyOptimizer(parameters, make, process_group=replicas.group, parameters_as_bucket_view=True, **options)


def average_rest(stages: Iterable[nn.Module], configuration: Configuration, mesh: Mesh) -> None:
    """Average the gradients that neither DDP nor FSDP2 does: all under a split backward pass, else those of experts that are spread."""
    if configuration.zero_stage >= 2:
        return
    for parameters, replicas in _replicated(stages, mesh):
        by_hand = splits_backward(configuration) or replicas is not mesh.dp
        if by_hand and replicas.group is not None:
            average(parameters, replicas, configuration.dp_bucket_mb * 2**20)


def _replicated(stages: Iterable[nn.Module], mesh: Mesh) -> list[tuple[list[nn.Parameter], Axis]]:
    """The parameters of this rank, with the ranks that hold the same ones."""
    named = [(name, parameter) for stage in stages for name, parameter in stage.named_parameters()]
    if mesh.ep.size == 1:
        return [([parameter for _, parameter in named], mesh.dp)]
    spread = [parameter for name, parameter in named if of_expert(name)]
    dense = [parameter for name, parameter in named if not of_expert(name)]
    return [(parameters, replicas) for parameters, replicas in ((dense, mesh.dp), (spread, mesh.expert_dp)) if parameters]


def of_expert(name: str) -> bool:
    """Whether a parameter is one of a mixture's experts, which may have fewer replicas than all others."""
    return ".experts." in name


@contextlib.contextmanager
def accumulating(module: nn.Module, configuration: Configuration, *, last: bool) -> Iterator[None]:
    """Run one micro-batch of several: gradients stay local until the last one."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        # ZeRO-2 keeps the gathered parameters from the first forward to the last backward pass of a step.
        module.set_reshard_after_backward(last or configuration.zero_stage == 3)
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def average(parameters: Iterable[nn.Parameter], replicas: Axis, bucket_bytes: float) -> None:
    """Average gradients over the replicas, bucket by bucket, all of them under way at once."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flats = [torch.cat([gradient.flatten() for gradient in bucket]) for bucket in _buckets(gradients, bucket_bytes)]
    works = [dist.all_reduce(flat, group=replicas.group, async_op=True) for flat in flats]
    for flat, bucket, work in zip(flats, _buckets(gradients, bucket_bytes), works, strict=True):
        work.wait()
        for gradient, mean in zip(bucket, flat.div_(replicas.size).split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(mean.view_as(gradient))


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
