"""The loss on samples that training never sees, under any layout.

Micro-batches go forward one after the other, from stage to stage: slower than a schedule would be, but the same under all of them. All
replicas run as many, for they may have to gather weights together; of what fills up a share nobody asks for the loss.
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

from oppa.pipeline.configured import shape_of
from oppa.pipeline.stage_layout import Stages
from oppa.problem.configuration import Configuration
from oppa.training.accuracy import hits
from oppa.training.batches import Batch, Source
from oppa.training.family import Family
from oppa.training.mesh import Mesh
from oppa.training.tensor_parallel import IGNORED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """What held-out samples say."""

    loss: float
    """Their mean."""
    accuracy: float | None
    """The share of targets that are hit; None where outputs are not one for each class."""

    @classmethod
    def of(cls, total: Tensor) -> Self:
        """From the sum over all ranks of what `losses` returns."""
        loss, count, hit = total.tolist()
        return cls(loss=loss / count, accuracy=hit / count if math.isfinite(hit) else None)


def share_of(source: Source, configuration: Configuration, replica: int) -> tuple[Batch, int]:
    """A replica's share of the held-out samples, filled up to whole micro-batches, as many as others have; and how many count."""
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
    """Of this replica's samples: the sum of losses over all targets, how many there are, and how many are hit, shape (3,).

    Zeros but for one rank. Hits are not a number where outputs are not one for each class, or where a rank has some of the classes.

    Args:
        stages: Those of this rank by their number.
        parts: Of all stages.
        batch: In whole micro-batches.
        counting: The first so many samples count.
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
                    found = hits(passing[: len(targets)], targets) if mesh.tp.size == 1 else None
                    hit = found[0] if found is not None else torch.full_like(loss, torch.nan)
                    if mesh.tp.index == 0:
                        total += torch.stack((loss * count, count, hit)).double()
            elif rank_of(number + 1) != mesh.pp.index:
                dist.send(passing.contiguous(), group=mesh.pp.group, group_dst=rank_of(number + 1))
    for stage in stages.values():
        stage.train()
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
    return total
