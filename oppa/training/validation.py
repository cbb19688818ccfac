"""The loss on samples that training never sees, under any layout.

Micro-batches go forward one after the other, from stage to stage: slower than a schedule would be, but the same under all of them. All
replicas run as many, for they may have to gather weights together; what fills up a share has targets that do not count.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from oppa.problem.configuration import Configuration
from oppa.training.batches import Batch, Source
from oppa.training.family import Family
from oppa.training.mesh import Mesh
from oppa.training.pipeline_parallel import blocks_of, rank_of
from oppa.training.tensor_parallel import IGNORED


def share_of(source: Source, configuration: Configuration, replica: int) -> Batch:
    """A replica's share of the held-out samples, as long as that of the others, in whole micro-batches."""
    each = -(-source.held_out // (configuration.dp * configuration.micro_batch)) * configuration.micro_batch
    own = range(replica * each, (replica + 1) * each)
    there = range(min(own.start, source.held_out - 1), min(own.stop, source.held_out))
    batch = source.validation(there)
    lacking = each - len(there)
    inputs, targets = (F.pad(part, (*[0] * (2 * part.dim() - 1), lacking)) for part in (batch.inputs, batch.targets))
    targets[min(len(there), max(0, source.held_out - own.start)) :] = IGNORED
    return Batch(inputs, targets)


@torch.no_grad()
def losses(stages: Mapping[int, nn.Module], family: Family, configuration: Configuration, mesh: Mesh, layers: int, batch: Batch) -> Tensor:
    """Of this replica's samples: the sum of losses over all targets, and how many there are, shape (2,); zeros but for one rank.

    Args:
        stages: Those of this rank by their number.
        batch: In whole micro-batches.
    """
    total = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    last = configuration.pp * configuration.model_chunks - 1
    for inputs, targets in zip(*(part.split(configuration.micro_batch) for part in (batch.inputs, batch.targets)), strict=True):
        passing: Tensor | None = inputs
        for number, stage in sorted(stages.items()):
            if number and rank_of(number - 1, configuration) != mesh.pp.index:
                shape = family.boundary(blocks_of(number, configuration, layers).start)
                passing = torch.empty_like(shape, device=mesh.device, requires_grad=False)
                dist.recv(passing, group=mesh.pp.group, group_src=rank_of(number - 1, configuration))
            assert passing is not None
            passing = stage(passing)
            if number == last:
                count, loss = (targets != IGNORED).sum(), family.loss(passing, targets)
                if count and mesh.tp.index == 0:
                    total += torch.stack((loss * count, count)).double()
            elif rank_of(number + 1, configuration) != mesh.pp.index:
                dist.send(passing.contiguous(), group=mesh.pp.group, group_dst=rank_of(number + 1, configuration))
    for module in (module for stage in stages.values() for module in stage.modules()):
        if isinstance(module, FSDPModule):
            module.reshard()
    return total
