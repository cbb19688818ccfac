"""Divide the predicted step time and memory of configurations by what causes them; the parts add up to the whole."""

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.layers import layer_time, layer_times
from oppa.cost.memory import PhaseMemory, buffers, first_stage, in_passes, in_update, last_stage
from oppa.cost.step_time import (
    exchange_times,
    filling_time,
    head_time,
    loss_time,
    optimizer_time,
    stage_contents,
    stage_time,
    step_time,
    tied_time,
    transfers_time,
    upload_time,
)
from oppa.cost.workload import Workload

TIMES = {
    "matmul": "matrix products of the layers",
    "attention": "attention",
    "elementwise": "norms, activations and residuals",
    "weights": "copies of weights and sums of gradients",
    "output": "output projection and loss",
    "host": "waiting for the host",
    "tensor_parallel": "tensor-parallel operations",
    "context_parallel": "context-parallel exchange",
    "expert_parallel": "exchange of the experts' tokens",
    "uneven_stages": "uneven stages",
    "bubble": "the pipeline's bubble",
    "transfers": "transfers between stages",
    "gradients": "exchange of gradients",
    "parameters": "gathers of parameters",
    "optimizer": "the optimizer",
    "offload": "what is in the host's memory",
    "fixed": "fixed time of a step",
    "stalls": "stalls of slow hosts",
}
"""Kinds of work, with their names in words. What overlaps other work counts only as far as it is not hidden."""
SIZES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "logits": "logits",
    "buffers": "communicators and fixed",
}
"""Parts of memory, with their names in words."""
PEAKS = (
    "the first stage, in the passes",
    "the first stage, in the optimizer's update",
    "the last stage, in the passes",
    "the last stage, in the optimizer's update",
)
"""Stages and phases of a step that can need the most memory. In the update, gradients include the copies that it computes with."""


def times(work: Workload, c: Coefficients) -> dict[str, Tensor]:
    """Return the seconds of a step by the kinds TIMES, shape (n,) each."""
    layout, layer, stage = work.layout, layer_times(work, c), stage_time(work, c)
    layers, heads = stage_contents(work)
    count, idle, transfers = layout.num_microbatches, c["bubble"] * layout.bubble, transfers_time(work, c)
    output = heads * head_time(work, c) + loss_time(work, c)
    gradients, parameters = exchange_times(work, stage, c)
    update, whole, offloaded = optimizer_time(work, c), step_time(work, c), layout.offload_optimizer > 0
    parts = {
        "matmul": count * layers * layer.matmul,
        "attention": count * layers * layer.attention,
        "elementwise": count * layers * layer.elementwise,
        "weights": count * layers * layer.weights,
        "output": count * output,
        "host": count * layers * (layer_time(work, c) - layer.total),
        "tensor_parallel": count * layers * layer.tensor_parallel,
        "context_parallel": count * layers * layer.context_parallel,
        "expert_parallel": count * layers * layer.expert_parallel,
        "uneven_stages": count * (stage - layers * layer_time(work, c) - output),
        "bubble": idle * filling_time(work, stage, c),
        "transfers": (count + idle) * transfers,
        "gradients": gradients + tied_time(work, c),
        "parameters": parameters,
        "optimizer": torch.where(offloaded, 0.0, update),
        "offload": torch.where(offloaded, update, 0.0) + count * layers * layer.offload + upload_time(work, stage, c),
        "fixed": c["step_s"].expand_as(whole),
    }
    return {**parts, "stalls": whole - torch.stack(list(parts.values())).sum(0)}


def sizes(work: Workload, c: Coefficients) -> tuple[dict[str, Tensor], Tensor]:
    """Return the bytes of the fullest stage at its peak by the parts SIZES, shape (n,) each, and the index into PEAKS, shape (n,)."""
    stages = first_stage(work), last_stage(work)
    phases = [(phase(stage, c), buffers(stage, c)) for stage in stages for phase in (in_passes, in_update)]
    each = torch.stack([torch.stack([*phase, rest]) for phase, rest in phases])  # (4, 6, n)
    peak = each.sum(1).argmax(0)
    parts = each[peak, :, torch.arange(len(work))]
    return dict(zip((*PhaseMemory._fields, "buffers"), parts.unbind(-1), strict=True)), peak
