"""Pipeline parallelism: which blocks a rank holds, and the schedule that runs micro-batches through its stages."""

from collections.abc import Callable, Sequence

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

from oppa.errors import InputError, nearest
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.batches import Batch
from oppa.training.mesh import Mesh

_ONE_CHUNK = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_CHUNKS = {"interleaved": ScheduleInterleaved1F1B, "interleaved-zb": ScheduleInterleavedZeroBubble, "zb-v": ScheduleZBVZeroBubble}

Loss = Callable[[Tensor, Tensor], Tensor]


def stages_of(configuration: Configuration, pp_index: int) -> tuple[int, ...]:
    """The global numbers of the stages on this rank: round and round, or there and back (`zb-v`)."""
    pp, chunks = configuration.pp, configuration.model_chunks
    if configuration.schedule == "zb-v" and pp > 1:
        return pp_index, 2 * pp - 1 - pp_index
    return tuple(pp_index + chunk * pp for chunk in range(chunks))


def blocks_of(stage: int, configuration: Configuration, layers: int) -> range:
    """The blocks of a stage; stages differ by at most one block."""
    count = configuration.pp * configuration.model_chunks
    return range(layers * stage // count, layers * (stage + 1) // count)


def require_schedulable(configuration: Configuration, layers: int) -> None:
    """Refuse a configuration that its schedule cannot run.

    Raises:
        InputError: says which rule of the schedule is broken.
    """
    pp, chunks, count, schedule = configuration.pp, configuration.model_chunks, configuration.num_microbatches, configuration.schedule
    if pp > 1 and schedule not in {*_ONE_CHUNK, *_CHUNKS}:
        raise InputError(f"`schedule = {schedule}` is unknown", hint=nearest(schedule, [*_ONE_CHUNK, *_CHUNKS]))
    rounds = max(1, count // pp)
    rules = {
        "dp * micro_batch divides global_batch": configuration.global_batch == configuration.dp * configuration.micro_batch * count > 0,
        "pp * model_chunks <= layers": pp * chunks <= layers,
        "model_chunks == 1 without a pipeline": pp > 1 or chunks == 1,
        "model_chunks == 1 (gpipe, 1f1b)": pp == 1 or schedule not in _ONE_CHUNK or chunks == 1,
        "num_microbatches >= pp (1f1b)": pp == 1 or schedule != "1f1b" or count >= pp,
        "model_chunks >= 2 (interleaved)": pp == 1 or not schedule.startswith("interleaved") or chunks >= 2,
        "num_microbatches is a multiple of its rounds, max(1, num_microbatches // pp) (interleaved)": pp == 1
        or not schedule.startswith("interleaved")
        or count % rounds == 0,
        "model_chunks == 2 (zb-v)": pp == 1 or schedule != "zb-v" or chunks == 2,
    }
    for rule, holds in rules.items():
        if not holds:
            raise InputError(f"`{configuration.id}` cannot be scheduled with {count} micro-batches and {layers} layers", hint=rule)


class Pipeline:
    """The stages of this rank under their schedule."""

    def __init__(
        self, modules: Sequence[nn.Module], configuration: Configuration, model: Model, mesh: Mesh, *, loss: Loss, dtype: torch.dtype
    ) -> None:
        self._first, self._last = mesh.pp.index == 0, False
        total = configuration.pp * configuration.model_chunks
        stages = []
        for number, module in zip(stages_of(configuration, mesh.pp.index), modules, strict=True):
            inputs, outputs = _boundary(number, total, configuration, model, mesh, dtype)
            stages.append(PipelineStage(module, number, total, mesh.device, inputs, outputs, group=mesh.pp.group))
            self._last |= number == total - 1
        count = configuration.num_microbatches
        # The loss is already divided by the number of micro-batches: nothing to scale afterwards.
        if configuration.schedule in _ONE_CHUNK:
            self._schedule = _ONE_CHUNK[configuration.schedule](stages[0], count, loss_fn=loss, scale_grads=False)
        else:
            self._schedule = _CHUNKS[configuration.schedule](stages, count, loss_fn=loss, scale_grads=False)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Accumulate gradients of this replica's share of the batch; its mean loss, on the rank of the last stage."""
        losses: list[Tensor] = []
        tokens = (batch.tokens,) if self._first else ()
        self._schedule.step(*tokens, target=batch.targets if self._last else None, losses=losses, return_outputs=False)
        return torch.stack([loss.detach() for loss in losses]).sum() if self._last else None


def _boundary(number: int, total: int, configuration: Configuration, model: Model, mesh: Mesh, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a stage receives and sends, as meta tensors, so that no micro-batch is spent on finding out."""
    batch = (configuration.micro_batch, model.seq_len)
    rows = len(range(model.vocab * mesh.tp.index // mesh.tp.size, model.vocab * (mesh.tp.index + 1) // mesh.tp.size))
    tokens = torch.empty(batch, dtype=torch.long, device="meta")
    residual = torch.empty(*batch, model.hidden, dtype=dtype, device="meta", requires_grad=True)
    logits = torch.empty(*batch, rows, dtype=dtype, device="meta", requires_grad=True)
    return tokens if number == 0 else residual, logits if number == total - 1 else residual
