"""Compute the loss and the accuracy on held-out samples, under any layout.

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Holds loss and accuracy on held-out samples."""

    loss: float
    """Mean loss over the targets."""
    accuracy: float | None
    """Share of correct predictions; None if it cannot be computed (`Evaluation.losses`)."""

    @classmethod
    def of(cls, total: Tensor) -> Self:
        """Build the result from the sum of `Evaluation.losses` over all ranks."""
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Evaluates the present weights: micro-batches run forward through the stages of all ranks."""

    stages: Mapping[int, nn.Module]
    """Stages of this rank by number."""
    parts: Stages
    """Parts of every stage."""
    family: Family
    """Shapes between stages, and the loss."""
    configuration: Configuration
    mesh: Mesh

    @torch.no_grad()
    def losses(self, batch: Batch, counting: int) -> Tensor:
        """Return the sum of losses over this replica's targets, the number of targets and that of correct predictions, shape (3,).

        The sums are over the ranks of a replica, of which some have zeros. The number of correct predictions is NaN if outputs are not one
        per class. It also is under tensor or context parallelism, where a rank has only some of the classes or targets.

        Args:
            batch: Samples in whole micro-batches.
            counting: Number of samples that count; they come first.
        """
        total, size = torch.zeros(3, dtype=torch.float64, device=self.mesh.device), self.configuration.micro_batch
        modules = [module for stage in self.stages.values() for module in stage.modules()]
        training = [module for module in modules if module.training]  # not all: a user's module may keep some in evaluation mode
        for stage in self.stages.values():
            stage.eval()
        for start in range(0, len(batch.inputs), size):
            micro_batch = Batch(batch.inputs[start : start + size], batch.targets[start : start + size]).to(self.mesh.device)
            output, targets = self._output(micro_batch.inputs), micro_batch.targets[: max(0, counting - start)]
            if output is not None and len(targets):
                counted = self._counted(output[: len(targets)], targets)
                if self.mesh.tp.index == 0:
                    total += counted
        for module in training:
            module.training = True
        for module in modules:
            if isinstance(module, FSDPModule):
                module.reshard()
        return total

    def _output(self, inputs: Tensor) -> Tensor | None:
        """Run a micro-batch through this rank's stages; return the model's output if the last one is among them."""
        pp, rank_of, last = self.mesh.pp, shape_of(self.configuration).rank_of, len(self.parts) - 1
        passing = inputs
        for number, stage in sorted(self.stages.items()):
            if number and rank_of(number - 1) != pp.index:
                given = self.family.boundary(self.parts[number].start)
                passing = torch.empty_like(given, device=self.mesh.device, requires_grad=False)
                dist.recv(passing, group=pp.group, group_src=rank_of(number - 1))
            passing = stage(passing)
            if number < last and rank_of(number + 1) != pp.index:
                dist.send(passing.contiguous(), group=pp.group, group_dst=rank_of(number + 1))
        return passing if last in self.stages else None

    def _counted(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of losses, the number of targets and that of correct predictions in a rank's part of each sequence, shape (3,)."""
        loss, count = self.family.loss(output, targets), (targets != IGNORED).sum()
        found = hits(output, targets) if self.mesh.tp.size == self.mesh.cp.size == 1 else None
        hit = found[0] if found is not None else torch.full_like(loss, torch.nan)
        return torch.stack((loss * count, count, hit)).double() / self.mesh.cp.size


def hits(output: Tensor, targets: Tensor) -> Tensor | None:
    """Return the number of correct predictions and of targets, shape (2,); None if the outputs are not one per class.

    Args:
        output: One value per class along the last dimension, shape (..., classes); the largest is the prediction.
        targets: Class numbers, or IGNORED, shape (...).
    """
    if output.shape[:-1] != targets.shape or targets.is_floating_point():
        return None
    right = output.argmax(-1) == targets  # IGNORED is negative, so it never equals a class
    return torch.stack((right, targets != IGNORED)).flatten(1).sum(1)
