"""Compute the loss on held-out samples, under any layout.

Micro-batches run forward one at a time, from stage to stage. This is slower than a schedule, but the same under all schedules. All replicas
run equally many, because they may have to gather weights together. Samples that pad a share do not count.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from oppa.pipeline.from_configuration import shape_of
from oppa.pipeline.stage_layout import Stages
from oppa.problem.configuration import Configuration
from oppa.training.data.batches import Batch, Source
from oppa.training.model.tensor_parallel import IGNORED
from oppa.training.parallel.family import Family
from oppa.training.parallel.mesh import Mesh
from oppa.training.statistics.accuracy import hits


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Loss and accuracy on held-out samples."""

    loss: float
    """Mean loss over the targets."""
    accuracy: float | None
    """Share of correct predictions; None if it cannot be computed (`losses`)."""

    @classmethod
    def of(cls, total: Tensor) -> Self:
        """Build the result from the sum of `losses` over all ranks."""
        loss, count, hit = total.tolist()
        return cls(loss=loss / count, accuracy=hit / count if math.isfinite(hit) else None)


def share_of(source: Source, configuration: Configuration, replica: int) -> tuple[Batch, int]:
    """Return a replica's share of the held-out samples, padded to equally many whole micro-batches on each, and how many samples count."""
    each = -(-source.held_out // (configuration.dp * configuration.micro_batch)) * configuration.micro_batch
    start = min(replica * each, source.held_out - 1)
    batch = source.validation(range(start, min(start + each, source.held_out)))
    lacking = each - len(batch.inputs)
    inputs, targets = (F.pad(part, (*[0] * (2 * part.dim() - 1), lacking)) for part in (batch.inputs, batch.targets))
    return Batch(inputs, targets), max(0, min(each, source.held_out - replica * each))


@torch.no_grad()
def losses(
    stages: Mapping[int, nn.Module], family: Family, configuration: Configuration, mesh: Mesh, parts: Stages, batch: Batch, counting: int
) -> Tensor:
    """Return the sum of losses over this replica's targets, the number of targets and that of correct predictions, shape (3,).

    The sums are over the ranks of a replica, of which some have zeros. The number of correct predictions is NaN if outputs are not one per
    class, or under tensor or context parallelism, where a rank has only some of the classes or targets.

    Args:
        stages: Stages of this rank by number.
        family: Shapes between stages, and the loss.
        configuration: Present configuration.
        mesh: Process groups of this rank.
        parts: Parts of every stage.
        batch: Samples in whole micro-batches.
        counting: Number of samples that count; they come first.
    """
    total = torch.zeros(3, dtype=torch.float64, device=mesh.device)
    last, size, rank_of = len(parts) - 1, configuration.micro_batch, shape_of(configuration).rank_of
    for stage in stages.values():
        stage.eval()
    for start in range(0, len(batch.inputs), size):
        micro_batch = Batch(batch.inputs[start : start + size], batch.targets[start : start + size]).to(mesh.device)
        passing: Tensor | None = micro_batch.inputs
        for number, stage in sorted(stages.items()):
            if number and rank_of(number - 1) != mesh.pp.index:
                given = family.boundary(parts[number].start)
                passing = torch.empty_like(given, device=mesh.device, requires_grad=False)
                dist.recv(passing, group=mesh.pp.group, group_src=rank_of(number - 1))
            assert passing is not None
            passing = stage(passing)
            if number == last:
                targets = micro_batch.targets[: max(0, counting - start)]
                if len(targets):
                    loss, count = family.loss(passing[: len(targets)], targets), (targets != IGNORED).sum()
                    found = hits(passing[: len(targets)], targets) if mesh.tp.size == mesh.cp.size == 1 else None
                    hit = found[0] if found is not None else torch.full_like(loss, torch.nan)
                    if mesh.tp.index == 0:
                        total += torch.stack((loss * count, count, hit)).double() / mesh.cp.size
            elif rank_of(number + 1) != mesh.pp.index:
                dist.send(passing.contiguous(), group=mesh.pp.group, group_dst=rank_of(number + 1))
    for stage in stages.values():
        stage.train()
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
    return total
