"""Predict the seconds of one optimizer step with a physical model that has few coefficients.

    step = stall( (num_microbatches + bubble) * (stage + transfers) + replicas' exchange + optimizer + fixed )

Notation (n rows):
    tokens     tokens of one micro-batch
    layer      seconds of one layer's forward and backward pass on one micro-batch
    stage      seconds of the slowest pipeline stage on one micro-batch
"""

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.collectives import CollectiveGroup, all_reduce_time, gather_time, hop_time, transfer_time
from oppa.cost.stages import activation_elements, layers_per_stage, stage_parameters
from oppa.cost.workload import Workload

TENSOR_PARALLEL_OPERATIONS = 8
"""Operations per layer and micro-batch.

An all-reduce follows attention and feed-forward, forward and backward. Each is a reduce-scatter and an all-gather.
"""
EXPERT_PARALLEL_OPERATIONS = 4
"""Operations per layer and micro-batch: all-to-alls to the experts and back, forward and backward."""
REDUCED_BYTES = 4
"""Bytes of a gradient as replicas exchange it: fp32, whatever the precision."""
OPTIMIZER_PASSES = 3
"""Passes over gradients, weights and moments: the norm for clipping, the update, the copy to the format in use."""


def step_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of one optimizer step, shape (n,)."""
    stage = stage_time(work, c)
    exposed = 1 - work.layout.overlap_p2p * c["overlap"].clamp_max(1)
    transfers = 2 * exposed * work.layout.model_chunks * _transfer_time(work, c)
    pipeline = (work.layout.num_microbatches + c["bubble"] * work.layout.bubble) * (stage + transfers)
    return _with_stalls(pipeline + replica_time(work, stage, c) + optimizer_time(work, c) + c["step_s"], work)


def layer_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of one layer on one micro-batch, shape (n,).

    An asynchronous device takes its own time, or its host's time to launch the layer if that is longer. Otherwise the two add up.
    """
    device = _matmul_time(work, c) + _elementwise_time(work, c) + _tensor_parallel_time(work, c) + _expert_parallel_time(work, c)
    host = c["layer_launch_s"] + _contention_time(work, c)
    return torch.where(work.machine.asynchronous > 0, torch.maximum(device, host), device + host)


def head_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the output projection and the loss on one micro-batch, forward and backward, shape (n,)."""
    shape, layout, machine = work.shape, work.layout, work.machine
    tokens = work.tokens
    matmul = 6 * tokens * shape.head_parameters / layout.tp / (machine.matmul_flops_per_s * c["matmul_efficiency"])
    loss = c["logit_bytes"] * tokens * shape.vocab / layout.tp / (machine.memory_bandwidth * c["memory_efficiency"])
    return matmul + loss


def stage_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the slowest stage on one micro-batch, shape (n,).

    It is the last stage, with the output projection. If stages are balanced, they are as even as whole layers allow.
    """
    layer, head, layout = layer_time(work, c), head_time(work, c), work.layout
    layers = work.shape.layers / layout.pp
    even = torch.maximum(layers * layer + head / layout.pp, torch.maximum(layer, head))
    return torch.where((layout.pp == 1) | (layout.balanced == 0), layers.ceil() * layer + head, even)


def replica_time(work: Workload, stage: Tensor, c: Coefficients) -> Tensor:
    """Return the seconds in which replicas exchange gradients and parameters without overlap, shape (n,)."""
    layout, machine = work.layout, work.machine
    group = CollectiveGroup.of(layout.dp, layout.tp, machine, work.devices)
    parameters = stage_parameters(work)
    gradients, weights = parameters * REDUCED_BYTES, parameters * machine.element_bytes
    more = _more_operations(work, group, gradients, c)
    hidden = layout.overlap_exchange * c["overlap"] * 2 / 3 * stage  # hidden by the last micro-batch's backward pass
    reduced = (all_reduce_time(group, gradients, machine, c) + more - hidden).clamp_min(0)
    covered = layout.overlap_gather * (layout.zero_stage <= 2) * c["overlap"] / 3 * stage  # hidden by the first micro-batch's forward pass
    gathered = (gather_time(group, weights, machine, c) + more - covered).clamp_min(0)
    sharded = (gather_time(group, gradients, machine, c) + more - hidden).clamp_min(0)
    gathers = torch.where(layout.zero_stage >= 3, 2 * layout.num_microbatches, 1.0)  # one for each forward and each backward pass
    whole = torch.where(layout.zero_stage >= 1, sharded + gathers * gathered, reduced)
    return torch.where(layout.dp > 1, whole, 0.0)


def _more_operations(work: Workload, group: CollectiveGroup, gradients: Tensor, c: Coefficients) -> Tensor:
    """Return the extra seconds of an exchange in several operations instead of one, shape (n,).

    Each further bucket adds the cost of one operation. From ZeRO 2 on, each further layer adds the latency of its own ring.
    """
    layout, machine = work.layout, work.machine
    buckets = (gradients / layout.bucket_bytes).ceil().clamp_min(1) - 1
    layers = layers_per_stage(work) - 1
    following = c["operation_s"] + c["latency"] * machine.intra_latency
    waiting = c["operation_s"] + hop_time(group, machine, c)
    return torch.where(layout.zero_stage >= 2, layers * waiting + (buckets - layers).clamp_min(0) * following, buckets * following)


def optimizer_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the update, shape (n,): passes over all states of the parameters that a rank updates."""
    layout, machine = work.layout, work.machine
    shards = torch.where(layout.zero_stage >= 1, layout.dp, 1.0)
    state_bytes = machine.gradient_bytes + machine.optimizer_bytes
    states = stage_parameters(work) * OPTIMIZER_PASSES * state_bytes / shards
    return c["optimizer"] * states / (machine.memory_bandwidth * c["memory_efficiency"])


def _matmul_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of a layer's matrix products on one micro-batch, shape (n,).

    Narrow shards and small micro-batches make them less efficient. A recomputed forward pass adds a third.
    """
    shape, layout = work.shape, work.layout
    tokens, width = work.tokens, shape.hidden / layout.tp
    efficiency = c["matmul_efficiency"] * width / (width + c["narrow_width"]) * tokens / (tokens + c["few_tokens"])
    again = torch.where(layout.recompute == 2, 1.0, 0.0)
    attention_again = torch.where(layout.recompute >= 1, 1.0, 0.0)
    flops = (3 + again) * 2 * shape.layer_matmul_parameters + (3 + attention_again) * shape.attention_flops
    return tokens * flops / layout.tp / (work.machine.matmul_flops_per_s * efficiency)


def _elementwise_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of norms, rotations, activations and residuals, which memory bandwidth limits, shape (n,).

    The forward pass writes and reads its tensors once. The backward pass moves twice as much.
    """
    layout, machine = work.layout, work.machine
    passes = torch.where(layout.recompute == 2, 8.0, 6.0)
    moved = passes * activation_elements(work) * machine.element_bytes * work.tokens
    return moved / layout.tp / (machine.memory_bandwidth * c["memory_efficiency"])


def _tensor_parallel_time(work: Workload, c: Coefficients) -> Tensor:
    group = CollectiveGroup.of(work.layout.tp, torch.ones_like(work.layout.tp), work.machine, work.devices)
    payload = work.tokens * work.shape.hidden * work.machine.element_bytes
    again = torch.where(work.layout.recompute == 2, 1.5, 1.0)
    return again * TENSOR_PARALLEL_OPERATIONS * gather_time(group, payload, work.machine, c)


def _expert_parallel_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the all-to-alls that send tokens to their experts and back, forward and backward, shape (n,).

    Each is assumed to take as long as an all-gather of the same tokens.
    """
    group = CollectiveGroup.of(work.layout.ep, work.layout.tp, work.machine, work.devices)
    payload = work.tokens * work.shape.routed * work.shape.hidden * work.machine.element_bytes / work.layout.tp
    again = torch.where(work.layout.recompute == 2, 1.5, 1.0)
    return again * EXPERT_PARALLEL_OPERATIONS * gather_time(group, payload, work.machine, c)


def _contention_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds that tensor-parallel operations wait for pipeline transfers between hosts, shape (n,).

    The model adds the latency between hosts for each operation and rank.
    """
    layout, machine = work.layout, work.machine
    waits = (layout.tp > 1) & (layout.pp > 1) & (work.hosts > 1)
    return torch.where(waits, c["contention"] * c["latency"] * TENSOR_PARALLEL_OPERATIONS * layout.tp * machine.inter_latency, 0.0)


def _transfer_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds to send one micro-batch's activations to the next stage, shape (n,); each tensor-parallel rank sends its share."""
    layout, machine = work.layout, work.machine
    payload = work.tokens * work.shape.hidden * machine.element_bytes / layout.tp
    senders = torch.minimum(layout.dp * layout.tp, machine.devices_per_host)  # senders of a host at the same time
    alone = machine.devices_per_host / torch.maximum(senders, machine.ports)
    return torch.where(layout.pp > 1, transfer_time(payload, work.hosts > 1, machine, c, alone=alone), 0.0)


def _with_stalls(step: Tensor, work: Workload) -> Tensor:
    """Return the seconds of a typical step on hosts that may be slow, shape (n,).

    It is the geometric mean, weighted by probability, of a step without stalls and one that stalls at every micro-batch.
    """
    layout, machine = work.layout, work.machine
    hosts = work.hosts
    probability = torch.where(layout.pp > 1, 1 - (1 - machine.stall_probability_per_host) ** hosts, 0.0)
    stalled = step + (layout.num_microbatches + layout.pp - 1) * machine.stall_s
    return step * (stalled / step) ** torch.where(hosts > 1, probability, 0.0)
