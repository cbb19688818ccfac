"""Run pipeline parallelism: the stages that a rank holds, and the schedule that runs micro-batches through them."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from oppa.pipeline.from_configuration import schedule_of, shape_of, stages_of
from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT, Schedule
from oppa.pipeline.torch_csv import cells
from oppa.problem.configuration import Configuration
from oppa.training.data.batches import Batch
from oppa.training.parallel.family import Family
from oppa.training.parallel.mesh import Mesh
from oppa.training.profiler.recorder import LOSS, PassRecorder
from oppa.training.torch_internals import runtime_of
from oppa.trials.trial_folder import TrialSpec

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    from oppa.training.torch_internals import PipelineRuntime

OF_TORCH: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""torch's own schedules, with one stage per rank; all others are lists of actions that torch's runtime executes."""


def numbers_of(configuration: Configuration, pp_index: int) -> tuple[int, ...]:
    """Return the global numbers of the stages on a pipeline rank, in ascending order."""
    shape = shape_of(configuration)
    return tuple(stage for stage in range(shape.stages) if shape.rank_of(stage) == pp_index)


class _Recorded(PipelineStage):
    """Reports the passes of a stage to the recorder, if one is set."""

    recorder: PassRecorder | None = None

    def _recorded(self, kind: int, micro_batch: int) -> contextlib.AbstractContextManager[None]:
        return self.recorder.node(kind, self.stage_index, micro_batch) if self.recorder else contextlib.nullcontext()

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._recorded(FORWARD, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self._recorded(BACKWARD, bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self._recorded(WEIGHT, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


class Pipeline:
    """Runs the stages of this rank under their schedule."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        spec: TrialSpec,
        mesh: Mesh,
        family: Family,
        *,
        passes: Schedule | None = None,
        recorder: PassRecorder | None = None,
    ) -> None:
        """Build the stages and the schedule.

        Args:
            modules: Modules of this rank's stages, in the order of their numbers.
            spec: Model and configuration.
            mesh: Process groups of this rank.
            family: Source of the shapes between stages, and of the loss.
            passes: Schedule to use; by default, that of the configuration.
            recorder: Recorder of the passes.
        """
        configuration = spec.configuration
        numbers = numbers_of(configuration, mesh.pp.index)
        parts = stages_of(configuration, spec.model)
        total = len(parts)
        self._first, self._last = 0 in numbers, total - 1 in numbers
        stages: list[_Recorded] = []
        for number, module in zip(numbers, modules, strict=True):
            # Given, so that torch needs no micro-batch to infer the shapes.
            inputs, outputs = family.boundary(parts[number].start), family.boundary(parts[number].stop)
            stages.append(_Recorded(module, number, total, mesh.device, inputs, outputs, group=mesh.pp.group))
            stages[-1].recorder = recorder

        def loss(output: Tensor, targets: Tensor) -> Tensor:
            with recorder.node(LOSS, total - 1, 0) if recorder else contextlib.nullcontext():
                return family.loss(output, targets) / configuration.num_microbatches

        # The loss is already divided by the number of micro-batches, so gradients need no scaling.
        self._schedule: PipelineScheduleSingle | PipelineRuntime
        if passes is None and configuration.schedule in OF_TORCH:
            count = configuration.num_microbatches
            self._schedule = OF_TORCH[configuration.schedule](stages[0], count, loss_fn=loss, scale_grads=False)
        else:
            schedule = passes or schedule_of(configuration)
            self._schedule = runtime_of(cells(schedule), stages, schedule.shape.micro_batches, loss)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Accumulate gradients over this replica's share of the batch; return its mean loss on the rank of the last stage, else None."""
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if self._first else ()
        self._schedule.step(*inputs, target=batch.targets if self._last else None, losses=losses, return_outputs=False)
        return torch.stack([loss.detach() for loss in losses]).sum() if self._last else None
