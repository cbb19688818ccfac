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
from oppa.training.mesh import Axis, Mesh
from oppa.training.model import Stage
from oppa.training.rules import splits_backward


def shard(stage: Stage, configuration: Configuration, mesh: Mesh) -> None:
    """Split a stage that is still on the meta device over the replicas, in place, where the ZeRO stage asks for it."""
    if configuration.zero_stage < 2 or mesh.dp.group is None:
        return
    replicas = DeviceMesh.from_group(mesh.dp.group, mesh.device.type, mesh_dim_names=("dp",))
    reshard = configuration.zero_stage == 3
    for block in stage.blocks.values():
        fully_shard(block, mesh=replicas, reshard_after_forward=reshard)
    fully_shard(stage, mesh=replicas, reshard_after_forward=reshard)


def replicate(stage: Stage, configuration: Configuration, mesh: Mesh) -> nn.Module:
    """A stage with its weights, whose backward pass averages gradients over the replicas."""
    if configuration.zero_stage >= 2 or mesh.dp.group is None or splits_backward(configuration):
        return stage
    return DistributedDataParallel(
        stage,
        process_group=mesh.dp.group,
        device_ids=[mesh.device.index] if mesh.device.type == "cuda" else None,
        bucket_cap_mb=configuration.dp_bucket_mb,
        gradient_as_bucket_view=True,
        init_sync=False,  # the weights are equal already
    )


def optimizer_for(stages: Iterable[nn.Module], configuration: Configuration, mesh: Mesh, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW over all parameters of this rank; fused, so one pass and no temporaries."""
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    if configuration.zero_stage != 1 or mesh.dp.group is None:
        return torch.optim.AdamW(parameters, lr=learning_rate, fused=True)
    return ZeroRedundancyOptimizer(
        parameters, torch.optim.AdamW, process_group=mesh.dp.group, parameters_as_bucket_view=True, lr=learning_rate, fused=True
    )


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
