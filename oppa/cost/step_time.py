"""Predict the seconds of one optimizer step with a physical model that has few coefficients.

    step = stall( num_microbatches * (stage + transfers) + bubble * (others + transfers) + replicas' exchange + optimizer + fixed )

Notation (n rows):
    tokens     tokens of one micro-batch
    layer      seconds of one layer's forward and backward pass on one micro-batch
    stage      seconds of the slowest pipeline stage on one micro-batch
    others     mean seconds of the other stages
"""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.collectives import CollectiveGroup, all_reduce_time, gather_time, hop_time, transfer_time
from oppa.cost.layers import layer_time, weight_passes_time
from oppa.cost.stages import (
    expert_replicas,
    expert_shards,
    layers_per_stage,
    sharded_parameters,
    stage_experts,
    stage_parameters,
    waits_for_last,
)
from oppa.cost.workload import Workload

UNSURE = 0.2
"""Distance of a probability from one half within which a typical step is between one that stalls and one that does not.

Chosen on nanotron's runs, the only ones that stall, among 0.05 to 0.3; errors from 0.05 to 0.2 differ by less than half a percent.
"""
LOSS_PASSES = 9
"""Passes of torch's own cross-entropy over the logits of a vocabulary that exceeds a thread block's memory.

`log_softmax` reads them for the maximum, the sum and the result, which it writes. The backward pass writes zeros for `nll_loss`, and reads
them for a sum and for the result. It reads the log-softmax and writes the gradient (torch's SoftMax.cu).
"""
QUANTISED_WEIGHT_BYTES, QUANTISED_GRADIENT_BYTES = 1.0, 0.5
"""Bytes of a gathered weight and of a reduced gradient that ZeRO++ quantises (Wang et al. 2023, section 3)."""
OPTIMIZER_PASSES = 3
"""Passes over gradients, weights and moments: the norm for clipping, the update, the copy to the format in use."""
HOST_UPDATE_S = 1e-9
"""Seconds in which a host's processors update a weight with Adam. Gradients and the new weight pass through its memory, too.

Assumed between two figures. Memory that moves the 28 bytes of a weight's states at 150 GB/s needs 0.2 ns. Offload of LLaMA-7B by DeepSpeed
0.14 on eight A800 and two Xeon 8358 costs 2.5 to 3 ns (gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a).
"""


def step_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of one optimizer step, shape (n,)."""
    stage = stage_time(work, c)
    idle, transfers = c["bubble"] * work.layout.bubble, transfers_time(work, c)
    pipeline = work.layout.num_microbatches * (stage + transfers) + idle * (filling_time(work, stage, c) + transfers)
    replicas = replica_time(work, stage, c) + tied_time(work, c) + upload_time(work, stage, c)
    return _with_stalls(pipeline + replicas + optimizer_time(work, c) + c["step_s"], work)


def head_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the output projection and a fused loss on one micro-batch, forward and backward, shape (n,)."""
    shape, layout, machine = work.shape, work.layout, work.machine
    tokens = work.tokens
    matmul = 6 * tokens * shape.head_parameters / layout.tp / (machine.attention_flops_per_s * c["matmul_efficiency"])
    loss = c["logit_bytes"] * tokens * shape.vocab / layout.tp / (machine.memory_bandwidth * c["memory_efficiency"])
    return matmul + torch.where(layout.loss_bytes > 0, 0.0, loss) + weight_passes_time(shape.head_parameters, work)


def loss_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of torch's own loss on one micro-batch, forward and backward, shape (n,); 0 if the loss is fused.

    It needs all logits of a token. Unless a framework splits it over the vocabulary, tensor-parallel ranks gather them, and each computes
    the whole loss.
    """
    layout, machine = work.layout, work.machine
    logits, wide, narrow = work.tokens * work.shape.vocab, layout.loss_bytes, work.formats.element_bytes
    converted = torch.where(wide > narrow, 2 * (wide + narrow), 0.0)  # to fp32, and the gradient back
    computed = logits * (1 / layout.tp + c["whole_loss"] * (1 - 1 / layout.tp))
    group = CollectiveGroup.of(layout.tp, torch.ones_like(layout.tp), machine, work.devices)
    gathered = c["whole_loss"] * gather_time(group, logits * narrow, machine, c)
    moved = computed * (LOSS_PASSES * wide + converted) / (machine.memory_bandwidth * c["memory_efficiency"])
    return torch.where(wide > 0, moved + gathered, 0.0)


def stage_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the slowest stage on one micro-batch, shape (n,).

    It is the last stage, with the output projection and the loss. Balanced stages are counted as even, also if whole layers do not allow
    it, but for torch's own loss: whole layers predict published runs worse.
    """
    layer, head = layer_time(work, c), head_time(work, c)
    layers, heads = stage_contents(work)
    return torch.maximum(layers * layer + heads * head, torch.maximum(layer, head)) + loss_time(work, c)


def stage_contents(work: Workload) -> tuple[Tensor, Tensor]:
    """Return how many layers and output projections the slowest stage has, shape (n,) each; if stages are balanced, their means."""
    layout = work.layout
    layers, whole = work.shape.layers / layout.pp, (layout.pp == 1) | (layout.balanced == 0)
    return torch.where(whole, layers.ceil(), layers), torch.where(whole, 1.0, 1 / layout.pp)


def filling_time(work: Workload, stage: Tensor, c: Coefficients) -> Tensor:
    """Return the mean seconds of all stages but the slowest on one micro-batch, shape (n,).

    A pipeline of pp stages takes the sum of all for the first micro-batch, and the slowest for each further one.
    """
    whole = work.shape.layers * layer_time(work, c) + head_time(work, c) + loss_time(work, c)
    return (whole - stage).clamp_min(0) / (work.layout.pp - 1).clamp_min(1)


def replica_time(work: Workload, stage: Tensor, c: Coefficients) -> Tensor:
    """Return the seconds in which replicas exchange gradients and parameters without overlap, shape (n,)."""
    gradients, parameters = exchange_times(work, stage, c)
    return gradients + parameters


def exchange_times(work: Workload, stage: Tensor, c: Coefficients) -> tuple[Tensor, Tensor]:
    """Return the seconds in which replicas exchange gradients, and those in which they gather parameters, without overlap, shape (n,) each.

    Below ZeRO 3 parameters are gathered once, after the update, or by FSDP for each micro-batch. Under ZeRO 3 each forward and each
    backward pass gathers them, and frameworks that prefetch hide this behind the pass. Groups of HSDP add an all-reduce of their shards.
    The backward pass of ZeRO++ gathers within its smaller groups. The last bucket is full only when the backward pass ends, so nothing
    hides it.
    """
    layout, formats = work.layout, work.formats
    reduced, scattered, gathered, again, last_reduced, last_scattered = _operations_of_replicas(work, c)
    forward, backward = stage / 3, 2 / 3 * stage
    behind = layout.overlap_exchange * c["overlap"] * backward  # hidden by the last micro-batch's backward pass
    covered = layout.overlap_gather * c["overlap"] * forward  # hidden by the first micro-batch's forward pass
    below_one = torch.maximum(_exposed(reduced, behind, work), last_reduced)
    at_one = torch.where(formats.gradients_scattered_from > 1, below_one, torch.maximum(_exposed(scattered, behind, work), last_scattered))
    hidden = formats.prefetches * work.machine.asynchronous * c["overlap"]
    each = layout.num_microbatches
    exchanges = exchanges_of_gradients(work)
    # a backward pass that gathers and reduces hides both; the others only gather
    both = (again + scattered - torch.maximum(hidden * backward, behind)).clamp_min(0)
    only = (again - hidden * backward).clamp_min(0)
    mine = torch.minimum(both, only)  # what the gathers alone would take of `both`
    always = exchanges * (both - mine), each * (gathered - hidden * forward).clamp_min(0) + exchanges * mine + (each - exchanges) * only
    sharded = exchanges * torch.maximum(scattered - torch.maximum(hidden * backward, behind), last_scattered)
    often = torch.where((formats.gathers_each > 0) & ~waits_for_last(work), each, 1.0)
    kept = sharded, often * (gathered - torch.maximum(covered, hidden * forward)).clamp_min(0)  # a pass of ZeRO 2 keeps what it gathered
    by_stage = zip(
        (below_one, torch.zeros_like(reduced)), (at_one, _exposed(gathered, covered, work).clamp_min(0)), kept, always, strict=True
    )
    exchanged, collected = (_of_stage(layout.zero_stage, stages) for stages in by_stage)
    return torch.where(work.replicas > 1, exchanged, 0.0), torch.where(work.replicas > 1, collected, 0.0)


def _exposed(exchange: Tensor, hidden: Tensor, work: Workload) -> Tensor:
    """Return the seconds of an exchange beyond what hides them, shape (n,), if one micro-batch's pass hides `hidden`; less than 0 if less.

    Interleaved stages run pp micro-batches through a chunk before the next. A chunk is exchanged from its last micro-batch on, while those
    of the next chunks run (`is_last_microbatch_for_model_chunk` of megatron/core/pipeline_parallel/schedules.py). Either all chunks are
    late together, or the last one alone, which its own last micro-batch hides. What is gathered mirrors this.
    """
    layout = work.layout
    group = torch.minimum(layout.num_microbatches, layout.pp)
    passes = ((layout.model_chunks - 1) * group + 1) / layout.model_chunks
    return torch.maximum(exchange - passes * hidden, (exchange - hidden) / layout.model_chunks)


class _Exchange(NamedTuple):
    """Holds the seconds of the operations of replicas, shape (n,) each."""

    reduced: Tensor
    """The reduction of all gradients."""
    scattered: Tensor
    """Their reduction into shards."""
    gathered: Tensor
    """The gathering of the weights."""
    again: Tensor
    """The same within the smaller groups of ZeRO++, if there are any."""
    last_reduced: Tensor
    """The reduction of the last bucket."""
    last_scattered: Tensor
    """Its reduction into shards."""


def _operations_of_replicas(work: Workload, c: Coefficients) -> _Exchange:
    """Return the seconds of the operations of replicas.

    Expert parallelism leaves fewer replicas of an expert than of other weights: with as many ranks as replicas, an expert has none.
    """
    layout, experts = work.layout, stage_experts(work)
    dense = _exchange(work, stage_parameters(work) - experts, work.replicas, layout.shards, layout.tp, c)
    routed = _exchange(work, experts, expert_replicas(work), expert_shards(work), layout.ep * layout.etp, c)
    return _Exchange(*(one + torch.where(experts > 0, other, 0.0) for one, other in zip(dense, routed, strict=True)))


def _exchange(work: Workload, parameters: Tensor, replicas: Tensor, shards: Tensor, stride: Tensor, c: Coefficients) -> _Exchange:
    """Return what `_operations_of_replicas` does for `parameters` of each rank, which `replicas` ranks hold and `shards` of them divide."""
    layout, machine, formats = work.layout, work.machine, work.formats
    small = torch.where(layout.hpz > 1, layout.hpz.minimum(shards), shards)
    whole, group, second = (CollectiveGroup.of(members, stride, machine, work.devices) for members in (replicas, shards, small))
    copies = CollectiveGroup.of(replicas / shards, stride * shards, machine, work.devices)
    reduced_bytes = torch.where(layout.quantized_gradients > 0, QUANTISED_GRADIENT_BYTES, work.reduced_bytes)
    in_eight_bits = (layout.quantized_weights > 0) | (machine.eight_bit * layout.fp8_weights > 0)
    weight_bytes = formats.gathered_weight_bytes
    weight_bytes = torch.where(in_eight_bits, weight_bytes.clamp_max(QUANTISED_WEIGHT_BYTES), weight_bytes)
    updated = torch.where((layout.zero_stage >= 3) | (formats.gathers_each > 0), 1.0, formats.trained)  # below ZeRO 3, frozen weights stay
    gradients, weights = parameters * formats.trained * reduced_bytes, parameters * updated * weight_bytes
    reduced, scattered = all_reduce_time(whole, gradients, machine, c), gather_time(group, gradients, machine, c)
    scattered = scattered + all_reduce_time(copies, gradients / shards, machine, c)
    last = (layout.last_bucket_bytes / gradients).clamp_max(1)
    return _Exchange(
        reduced=reduced + _more_operations(work, whole, gradients, c),
        scattered=scattered + _more_operations(work, group, gradients, c),
        gathered=gather_time(group, weights, machine, c) + _more_operations(work, group, gradients, c),
        again=gather_time(second, weights, machine, c) + _more_operations(work, second, gradients, c),
        last_reduced=last * reduced,
        last_scattered=last * scattered,
    )


def tied_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds in which the first and the last stage add the gradients of a tied embedding, shape (n,).

    All ranks of the first stage send theirs at the same time, after the backward pass.
    """
    gradients = work.shape.head_parameters / work.layout.tp * work.formats.trained * work.reduced_bytes
    seconds = transfer_time(gradients, work.hosts > 1, work.machine, c, alone=_share_of_port(work))
    return torch.where((work.shape.tied > 0) & (work.layout.pp > 1) & (work.layout.ends_together == 0), seconds, 0.0)


def upload_time(work: Workload, stage: Tensor, c: Coefficients) -> Tensor:
    """Return the seconds in which ZeRO 3's shards move from the host to the device, as far as passes do not hide them, shape (n,).

    Each forward and each backward pass needs them. A rank whose shard is the optimizer's own weight moves that, in fp32 (FSDP).
    """
    layout, formats = work.layout, work.formats
    resting = torch.where(formats.sharded_weight_bytes > 0, formats.sharded_weight_bytes, 4.0)
    moved = stage_parameters(work) / layout.shards * resting / work.machine.host_bandwidth
    hidden = formats.prefetches * work.machine.asynchronous * c["overlap"] * stage
    exposed = (moved - hidden / 3).clamp_min(0) + (moved - 2 / 3 * hidden).clamp_min(0)
    return torch.where((layout.offload_parameters > 0) & (layout.zero_stage >= 3), layout.num_microbatches * exposed, 0.0)


def _of_stage(zero_stage: Tensor, values: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Return the value of each row's ZeRO stage, shape (n,)."""
    below_one, one, two, three = values
    return torch.where(zero_stage >= 3, three, torch.where(zero_stage >= 2, two, torch.where(zero_stage >= 1, one, below_one)))


def exchanges_of_gradients(work: Workload) -> Tensor:
    """Return how often replicas exchange gradients in a step, shape (n,): once, or in some frameworks after each micro-batch."""
    each = (work.formats.reduces_each > 0) & (work.layout.zero_stage >= 2) & ~waits_for_last(work)
    return torch.where(each, work.layout.num_microbatches, 1.0)


def _more_operations(work: Workload, group: CollectiveGroup, gradients: Tensor, c: Coefficients) -> Tensor:
    """Return the extra seconds of an exchange in several operations instead of one, shape (n,).

    Each further bucket adds the cost of one operation, as its way around the ring begins while the one before is on it. From ZeRO 2 on,
    each further layer adds the latency of its own ring.
    """
    layout, machine = work.layout, work.machine
    buckets = (gradients / layout.bucket_bytes).ceil().clamp_min(1) - 1
    layers = layers_per_stage(work) - 1
    following = c["operation_s"] + c["latency"] * machine.intra_latency
    waiting = c["operation_s"] + hop_time(group, machine, c)
    more = torch.where(layout.zero_stage >= 2, layers * waiting + (buckets - layers).clamp_min(0) * following, buckets * following)
    return torch.where(group.members > 1, more, 0.0)


def optimizer_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the update, shape (n,): passes over all states of the parameters that a rank updates.

    An optimizer in the host's memory computes there, so that its states move, and the ranks of a host share its processors.
    """
    layout, machine = work.layout, work.machine
    held = stage_parameters(work)
    updated = torch.where(layout.zero_stage >= 1, sharded_parameters(work, held), held)
    states = updated * (work.gradient_bytes + work.optimizer_bytes)
    on_device = OPTIMIZER_PASSES * states / (machine.memory_bandwidth * c["memory_efficiency"])
    neighbours = torch.minimum(machine.devices_per_host, work.devices)
    on_host = states / machine.host_bandwidth + HOST_UPDATE_S * neighbours * updated
    return c["optimizer"] * torch.where(layout.offload_optimizer > 0, on_host, on_device)


def transfers_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds of the transfers between stages that one micro-batch waits for, shape (n,): there and back, for each chunk.

    A stage that waits for its input starts each pass anew: its host has launched nothing ahead. If transfers overlap, this is so while a
    pipeline fills. Later each stage alternates between both directions, and an input is there a pass before it is needed.
    """
    layout = work.layout
    exposed = 1 - layout.overlap_p2p * c["overlap"].clamp_max(1)
    waiting = torch.where(layout.overlap_p2p > 0, _filling_share(work), 1.0)
    start = torch.where(layout.pp > 1, waiting * c["pass_s"], 0.0)
    return 2 * layout.model_chunks * (exposed * _transfer_time(work, c) + start)


def _filling_share(work: Workload) -> Tensor:
    """Return the share of the forward passes that a stage runs before its first backward pass, shape (n,); the mean over stages.

    They are pp - 1 on average, and pp more for each further chunk (Narayanan et al. 2021, section 2.2).
    """
    layout = work.layout
    return ((layout.pp * layout.model_chunks - 1) / (layout.num_microbatches * layout.model_chunks)).clamp_max(1)


def _transfer_time(work: Workload, c: Coefficients) -> Tensor:
    """Return the seconds to send one micro-batch's activations to the next stage, shape (n,); each tensor-parallel rank sends its share."""
    layout, machine = work.layout, work.machine
    payload = work.tokens * work.shape.hidden * work.formats.element_bytes / layout.tp
    return torch.where(layout.pp > 1, transfer_time(payload, work.hosts > 1, machine, c, alone=_share_of_port(work)), 0.0)


def _share_of_port(work: Workload) -> Tensor:
    """Return the multiple of its share of the network that a rank can use while all ranks of its stage send, shape (n,)."""
    machine = work.machine
    senders = torch.minimum(work.replicas * work.layout.tp, machine.devices_per_host)  # senders of a host at the same time
    ports = torch.minimum(machine.ports, machine.devices_per_host)  # a job's hosts may have fewer devices than the catalogue's
    return machine.devices_per_host / torch.maximum(senders, ports)


def stalled_probability(work: Workload) -> Tensor:
    """Return the probability that a step stalls, shape (n,): that one of a pipeline's hosts is slow."""
    slow = 1 - (1 - work.machine.stalls * work.formats.stall_probability_per_host) ** work.hosts
    return torch.where((work.layout.pp > 1) & (work.hosts > 1), slow, 0.0)


def without_stalls(work: Workload) -> Workload:
    """Return the same configurations where no step stalls."""
    return dataclasses.replace(work, machine=dataclasses.replace(work.machine, stalls=torch.zeros_like(work.machine.stalls)))


def stalled_time(step: Tensor, work: Workload) -> Tensor:
    """Return the seconds of a step that stalls at every micro-batch, shape (n,)."""
    return step + (work.layout.num_microbatches + work.layout.pp - 1) * work.formats.stall_s


def _with_stalls(step: Tensor, work: Workload) -> Tensor:
    """Return the seconds of a typical step on hosts that may be slow, shape (n,).

    It is a geometric mean of a step without stalls and one that stalls, nearer to the likelier of the two than their mean.
    """
    probability = stalled_probability(work)
    weight = torch.where(probability > 0, torch.special.ndtr((probability - 0.5) / UNSURE), 0.0)
    return step * (stalled_time(step, work) / step) ** weight
