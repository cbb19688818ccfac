"""Predict the bytes on the fullest device at the peak of a step.

    passes = state * (weights + gradients + optimizer) + activation * (layers in flight + the layer at work or the loss) + logits
    update = state * (weights + gradients + optimizer + what the update computes with)
    memory = max(passes, update) + communicators + fixed

Notation (n rows):
    parts    bytes of PARTS, before coefficients apply     (n, 11)
"""

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.layers import recomputed
from oppa.cost.stages import (
    activation_elements,
    expert_shards,
    experts_per_layer,
    first_ends,
    held_per_layer,
    layers_per_stage,
    replicated_elements,
)
from oppa.cost.workload import Workload

PARTS = ("weights", "gradients", "optimizer", "waiting", "update", "sharded", "replicated", "logits", "loss", "gathered", "communicators")
"""Parts of a stage's memory, in bytes, but for `communicators`, which is a number of groups.

`logits` is one copy of them, and 0 under torch's own loss, whose tensors are `loss`. `gathered` are the logits of other tensor-parallel
ranks. `gradients` is what remains of them at the peak of the passes. `update` is what the optimizer's step needs in addition to weights
and states.
"""
PLAIN_LOSS_NUMBERS = 3
"""Numbers that torch's own cross-entropy keeps for each logit beside the logit itself, at the start of its backward pass.

They are the log-softmax, its gradient and that of the logit (`log_softmax` and `nll_loss` of torch), in fp32 where the program or
autocast converts the logits.
"""
FUSED_LOSS_COPIES = 2
"""Copies of the logits under a fused loss: they and their gradient, both free before the backward pass reaches the first layer."""
KEPT_SCORE_BYTES = 5
"""Bytes per attention score that a softmax with dropout keeps for the backward pass (Korthikanti et al. 2022, section 4.1)."""
EIGHT_BIT_SAVING = 0.3
"""Share of a layer's activations that 8-bit training saves: inputs of linear layers, about 60% of all, are kept in one byte."""


def memory(work: Workload, c: Coefficients) -> Tensor:
    """Return the peak bytes of the first or the last pipeline stage, whichever is larger, shape (n,)."""
    return torch.maximum(_peak(first_stage(work), c), _peak(last_stage(work), c))


def parts(work: Workload) -> Tensor:
    """Return the parts of the first and of the last stage, shape (n, 22); they do not depend on the coefficients."""
    return torch.cat([first_stage(work), last_stage(work)], dim=-1)


def first_stage(work: Workload) -> Tensor:
    """Return the parts of the first stage, which has the embedding and most micro-batches in flight, shape (n, 11).

    A single stage holds the whole model.
    """
    return _parts(work, first_ends(work), work.layout.in_flight, torch.where(work.layout.pp == 1, _logits(work), 0.0))


def last_stage(work: Workload) -> Tensor:
    """Return the parts of the last stage, which has the output projection and its logits, shape (n, 11).

    It has one micro-batch in flight; under GPipe, all of them.
    """
    layout = work.layout
    gpipe = layout.in_flight >= layout.num_microbatches
    embedding = torch.where(layout.pp == 1, work.shape.embedding_parameters, 0.0)
    head = torch.where((layout.pp == 1) & (work.shape.tied > 0), 0.0, work.shape.head_parameters)
    return _parts(work, embedding + head, torch.where(gpipe, layout.in_flight, 1.0), _logits(work))


def _peak(parts: Tensor, c: Coefficients) -> Tensor:
    passes, update = phases(parts, c)
    return torch.maximum(sum(passes[1:], passes[0]), sum(update[1:], update[0])) + buffers(parts, c)


def phases(parts: Tensor, c: Coefficients) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the bytes of weights, gradients, optimizer, activations and logits, shape (n,) each, in the passes and in the update.

    The update's gradients include the copies that it computes with.
    """
    weights, gradients, optimizer, waiting, update, sharded, replicated, logits, loss, gathered, _ = parts.unbind(-1)
    activations = c["activation"] * (sharded + c["replicated"] * replicated)
    copies = c["logit_copies"] * (logits + c["whole_logits"] * gathered) + c["activation"] * loss
    held, kept = c["state"] * weights, c["state"] * optimizer
    passes = held, c["state"] * (gradients + c["whole_gradients"] * waiting), kept, activations, copies
    return passes, (held, c["state"] * update, kept, torch.zeros_like(activations), torch.zeros_like(copies))


def buffers(parts: Tensor, c: Coefficients) -> Tensor:
    """Return the bytes of communicators and those that depend on nothing, shape (n,)."""
    return c["fixed_bytes"] + c["communicator_bytes"] * parts[..., -1]


def _parts(work: Workload, ends: Tensor, in_flight: Tensor, logits: Tensor) -> Tensor:
    """Return the parts of a stage that holds `ends` parameters and `logits` numbers in addition to its layers, shape (n, 11).

    Without a buffer of their own, gradients appear as the backward pass frees activations. If there is only one micro-batch, they count as
    far as they exceed these.
    """
    layout, formats = work.layout, work.formats
    layers = layers_per_stage(work)
    held = (layers * held_per_layer(work) + ends) / layout.tp
    experts = layers * experts_per_layer(work)
    shared = (held - experts) / layout.shards + experts / expert_shards(work)  # what a rank holds of what ZeRO shards
    gathered = torch.maximum(formats.gathered_layers * held_per_layer(work) / layout.tp, formats.gathered_parameters.minimum(held))
    whole = held * formats.weight_bytes
    resting = torch.where(layout.offload_parameters > 0, 0.0, shared)  # what ZeRO 3 keeps on the device between passes
    alone = resting * formats.sharded_weight_bytes + gathered * formats.gathered_weight_bytes
    weights = torch.where(layout.zero_stage >= 3, torch.minimum(alone, whole + resting * formats.sharded_weight_bytes), whole)
    weights = weights + ends / layout.tp * formats.end_bytes / torch.where(layout.zero_stage >= 3, layout.shards, 1.0)
    divides = layout.zero_stage >= formats.gradients_sharded_from
    gradients = torch.where(divides, torch.where(layout.zero_stage >= 3, resting, shared), held)
    waiting = torch.where(divides & (layout.num_microbatches > 1), held - shared, 0.0)  # some frameworks divide only at the end
    updated = torch.where(layout.zero_stage >= 1, shared, held)
    optimizer = torch.where(layout.offload_optimizer > 0, 0.0, updated * formats.optimizer_bytes)
    split, replicated, at_work = _activations(work, layers, in_flight)
    fused, loss = _at_loss(work, logits, at_work)
    loss = torch.maximum(loss, _frozen_inputs(work, layers) - FUSED_LOSS_COPIES * fused)
    freed = torch.where((formats.gradient_buffer > 0) | (layout.num_microbatches > 1), 0.0, split + replicated + fused + loss)
    kept = (gradients * formats.gradient_bytes - freed).clamp_min(0)
    update = gradients * formats.gradient_bytes + updated * formats.update_bytes
    gathered_logits = (layout.tp - 1) * logits * formats.element_bytes
    states = weights, kept, optimizer, waiting * formats.gradient_bytes, update
    return torch.stack([*states, split, replicated, fused, loss, gathered_logits, _communicators(work)], dim=-1)


def _at_loss(work: Workload, logits: Tensor, at_work: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bytes of one copy of the logits for a fused loss, and what torch's own loss adds to the peak, shape (n,) each.

    Torch's own loss has freed its tensors when the backward pass reaches a layer, so they count as far as they exceed `at_work`.
    """
    plain, element_bytes = work.layout.loss_bytes > 0, work.formats.element_bytes
    kept = logits * (element_bytes + PLAIN_LOSS_NUMBERS * work.layout.loss_bytes)
    return torch.where(plain, 0.0, logits * element_bytes), torch.where(plain, kept - at_work, 0.0).clamp_min(0)


def _frozen_inputs(work: Workload, layers: Tensor) -> Tensor:
    """Return the bytes of the gradients of recomputed layers' inputs that units of frozen weights keep, shape (n,).

    They are all there when the backward pass ends, next to the inputs, after the loss has freed its tensors.
    """
    gathered = torch.where(work.layout.zero_stage >= 3, work.formats.frozen_unit_inputs, 0.0)
    inputs = layers * (1 + work.layout.wide_residuals) * work.shape.hidden * work.tokens * work.formats.element_bytes
    return gathered * recomputed(work) * inputs


def _activations(work: Workload, layers: Tensor, in_flight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bytes of activations, shape (n,) each: divided by tp, possibly replicated on every rank, and of the layer at work.

    The first part is what `layers` keep for the backward pass of the micro-batches in flight, with what the layer at work recomputes, which
    is the third. If sequence parallelism is off, every rank keeps the inputs and outputs of norms of all tokens.
    """
    shape, layout, formats = work.shape, work.layout, work.formats
    token_bytes = work.tokens * formats.element_bytes
    linear = 1 - work.machine.eight_bit * EIGHT_BIT_SAVING
    scores = torch.where(layout.flash > 0, 0.0, KEPT_SCORE_BYTES / formats.element_bytes * shape.heads * shape.seq_len)
    wide = layout.wide_residuals
    everything = (activation_elements(work) + wide * replicated_elements(work) + scores) * linear
    attention = 3 * shape.query_width + 2 * shape.kv_width
    again = recomputed(work)
    selective = torch.where(layout.recompute == 1, (activation_elements(work) - attention).clamp_min(0) * linear, everything)
    ring = torch.where(layout.cp_mode == 0, (layout.cp - 1) * shape.query_width, 0.0)  # each step's output, as Transformer Engine needs
    kept = again * (1 + wide) * shape.hidden + (1 - again) * (selective + ring)
    kept = torch.where(layout.offload_activations > 0, 0.0, kept)
    computes = (layout.recompute > 0) | (layout.offload_activations > 0)
    gradients = torch.where(shape.gated > 0, 2.0, 1.0) * shape.ffn  # beyond the activations that their computation has freed by then
    at_work = torch.where(computes, token_bytes * (everything + gradients) / layout.tp, 0.0)
    alike = replicated_elements(work) * torch.where(layout.recompute == 2, again / 4 + (1 - again), 1.0)
    alike = torch.where(layout.offload_activations > 0, 0.0, alike) * (1 - 1 / layout.tp)
    alike = token_bytes * layers * in_flight * alike
    divided = token_bytes * layers * in_flight * kept / layout.tp + at_work + (1 - layout.sequence_parallel) * alike
    return divided, layout.sequence_parallel * alike, at_work


def _communicators(work: Workload) -> Tensor:
    """Return in how many kinds of groups a rank communicates, shape (n,)."""
    layout = work.layout
    return torch.stack([size > 1 for size in (work.replicas, layout.tp, layout.pp, layout.cp, layout.ep)]).sum(0).to(layout.tp.dtype)


def _logits(work: Workload) -> Tensor:
    """Return the number of a micro-batch's logits on a rank, shape (n,)."""
    return work.tokens * work.shape.logit_elements / work.layout.tp
