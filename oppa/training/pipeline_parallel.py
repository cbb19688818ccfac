"""Pipeline parallelism: which blocks a rank holds, and the schedule that runs micro-batches through its stages."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.distributed.pipelining.stage import _PipelineStageBase

from oppa.problem.configuration import Configuration
from oppa.training.batches import Batch
from oppa.training.family import Family
from oppa.training.mesh import Mesh
from oppa.trials.wire import TrialSpec

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "interleaved-zb": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
}


def stages_of(configuration: Configuration, pp_index: int) -> tuple[int, ...]:
    """The global numbers of the stages on this rank: round and round, or there and back (`zb-v`)."""
    pp, chunks = configuration.pp, configuration.model_chunks
    if configuration.schedule == "zb-v" and pp > 1:
        return pp_index, 2 * pp - 1 - pp_index
    return tuple(pp_index + chunk * pp for chunk in range(chunks))


def rank_of(stage: int, configuration: Configuration) -> int:
    """Which rank of a pipeline holds a stage: the inverse of `stages_of`."""
    pp = configuration.pp
    if configuration.schedule == "zb-v" and pp > 1:
        return min(stage, 2 * pp - 1 - stage)
    return stage % pp


def blocks_of(stage: int, configuration: Configuration, layers: int) -> range:
    """The blocks of a stage; stages differ by at most one block."""
    count = configuration.pp * configuration.model_chunks
    return range(layers * stage // count, layers * (stage + 1) // count)


class Pipeline:
    """The stages of this rank under their schedule."""

    def __init__(self, modules: Sequence[nn.Module], spec: TrialSpec, mesh: Mesh, family: Family) -> None:
        configuration = spec.configuration
        numbers = stages_of(configuration, mesh.pp.index)
        total = configuration.pp * configuration.model_chunks
        self._first, self._last = 0 in numbers, total - 1 in numbers
        stages: list[_PipelineStageBase] = []
        for number, module in zip(numbers, modules, strict=True):
            blocks = blocks_of(number, configuration, spec.model.layers)
            # Told, so that no micro-batch is spent on finding out.
            inputs, outputs = family.boundary(blocks.start), family.boundary(blocks.stop)
            stages.append(PipelineStage(module, number, total, mesh.device, inputs, outputs, group=mesh.pp.group))

        def loss(output: Tensor, targets: Tensor) -> Tensor:
            return family.loss(output, targets) / configuration.num_microbatches

        several = issubclass(SCHEDULES[configuration.schedule], PipelineScheduleMulti)
        # The loss is already divided by the number of micro-batches: nothing to scale afterwards.
        self._schedule: PipelineScheduleSingle | PipelineScheduleMulti = SCHEDULES[configuration.schedule](
            stages if several else stages[0], configuration.num_microbatches, loss_fn=loss, scale_grads=False
        )

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Accumulate gradients of this replica's share of the batch; its mean loss, on the rank of the last stage."""
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if self._first else ()
        self._schedule.step(*inputs, target=batch.targets if self._last else None, losses=losses, return_outputs=False)
        return torch.stack([loss.detach() for loss in losses]).sum() if self._last else None
