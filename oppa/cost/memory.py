"""Predict the bytes on the fullest device at the peak of a step.

    passes = state * (weights + gradients + optimizer) + activation * (layers in flight + the layer at work or the loss) + logits
    update = state * (weights + gradients + optimizer + what the update computes with)
    memory = max(passes, update) + communicators + fixed

Notation (n rows): each part of `StageMemory` and of `PhaseMemory` has shape (n,).
"""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.recomputation import attention_again, of_selective, recomputed, replicated_again, selective_elements
from oppa.cost.stages import (
    activation_elements,
    first_ends,
    held_per_layer,
    holds_both_ends,
    layers_per_stage,
    norm_copies,
    replicated_elements,
    routed_elements,
    sharded_parameters,
    waits_for_last,
)
from oppa.cost.workload import Columns, Workload

PLAIN_LOSS_NUMBERS = 3
"""Numbers that torch's own cross-entropy keeps for each logit in addition to the logit, at the start of its backward pass.

They are the log-softmax, its gradient and that of the logit (`log_softmax` and `nll_loss` of torch). They are in fp32 where the program or
autocast converts the logits.
"""
FUSED_LOSS_COPIES = 2
"""Copies of the logits under a fused loss: they and their gradient, both free before the backward pass reaches the first layer."""
CHUNK_INPUTS = 2
"""Logits of a chunk over the numbers of the loss's input: between one and two (`ops/fused_linear_cross_entropy.py` of Liger Kernel)."""
KEPT_SCORE_BYTES = 5
"""Bytes per attention score that a softmax with dropout keeps for the backward pass (Korthikanti et al. 2022, section 4.1)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMemory(Columns):
    """Holds the parts of a stage's memory before coefficients apply, in bytes."""

    weights: Tensor
    gradients: Tensor
    """Gradients that remain at the peak of the passes."""
    optimizer: Tensor
    waiting_gradients: Tensor
    """Gradients that some frameworks divide among replicas only at the end of the passes."""
    update: Tensor
    """Bytes that the optimizer's step needs in addition to weights and states."""
    sharded_activations: Tensor
    replicated_activations: Tensor
    routed_activations: Tensor
    """The part of the sharded ones that depends on how many tokens the experts of a rank get; 0 without expert parallelism."""
    logits: Tensor
    """One copy of the logits; 0 under torch's own loss."""
    loss: Tensor
    """The tensors of torch's own loss; 0 under a fused one."""
    gathered_logits: Tensor
    """The logits of other tensor-parallel ranks; 0 under torch's own loss."""
    gathered_loss: Tensor
    """The tensors that torch's own loss has of them; 0 under a fused one."""
    communicators: Tensor
    """Kinds of groups in which a rank communicates: a number, not bytes."""

    def stacked(self) -> Tensor:
        """Return all parts, shape (n, parts)."""
        return torch.stack([getattr(self, part.name) for part in dataclasses.fields(self)], dim=-1)


class PhaseMemory(NamedTuple):
    """Holds the bytes that a stage needs in the passes, or in the update."""

    weights: Tensor
    gradients: Tensor
    """Gradients; in the update, with the copies that it computes with."""
    optimizer: Tensor
    activations: Tensor
    logits: Tensor

    @property
    def total(self) -> Tensor:
        """Return the sum of all parts, shape (n,)."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


class _Activations(NamedTuple):
    """Holds bytes of activations, shape (n,) each."""

    sharded: Tensor
    """Activations that layers keep for the micro-batches in flight, with `at_work`; tensor parallelism divides them."""
    replicated: Tensor
    """Inputs and outputs of norms of all tokens, which every tensor-parallel rank keeps if sequence parallelism is off."""
    routed: Tensor
    """The part of the sharded ones that is of experts, under expert parallelism."""
    at_work: Tensor
    """Activations that the layer at work recomputes."""


def memory(work: Workload, c: Coefficients) -> Tensor:
    """Return the peak bytes of the first or the last pipeline stage, whichever is larger, shape (n,)."""
    return torch.maximum(_peak(first_stage(work), c), _peak(last_stage(work), c))


def first_stage(work: Workload) -> StageMemory:
    """Return the parts of the first stage, which has the embedding and most micro-batches in flight.

    A single stage holds the whole model, and the first of a V is also the last.
    """
    logits = torch.where(holds_both_ends(work), _logits(work), 0.0)
    return _stage(work, ends=first_ends(work), in_flight=work.layout.in_flight, logits=logits)


def last_stage(work: Workload) -> StageMemory:
    """Return the parts of the last stage, which has the output projection and its logits."""
    ends = torch.where(holds_both_ends(work), first_ends(work), work.shape.head_parameters)
    return _stage(work, ends=ends, in_flight=work.layout.last_in_flight, logits=_logits(work))


def _peak(stage: StageMemory, c: Coefficients) -> Tensor:
    return torch.maximum(in_passes(stage, c).total, in_update(stage, c).total) + buffers(stage, c)


def in_passes(stage: StageMemory, c: Coefficients) -> PhaseMemory:
    """Return the bytes of a stage at the peak of the passes."""
    uneven = (c["uneven_experts"] - 1) * stage.routed_activations
    kept = stage.sharded_activations + c["replicated"] * stage.replicated_activations + uneven
    return PhaseMemory(
        weights=c["state"] * stage.weights,
        gradients=c["state"] * (stage.gradients + c["whole_gradients"] * stage.waiting_gradients),
        optimizer=c["state"] * stage.optimizer,
        activations=c["activation"] * kept,
        logits=c["logit_copies"] * (stage.logits + c["whole_logits"] * stage.gathered_logits)
        + c["activation"] * (stage.loss + c["whole_logits"] * stage.gathered_loss),
    )


def in_update(stage: StageMemory, c: Coefficients) -> PhaseMemory:
    """Return the bytes of a stage during the optimizer's update, when activations and logits are free."""
    weights, free = c["state"] * stage.weights, torch.zeros_like(stage.weights)
    return PhaseMemory(
        weights=weights, gradients=c["state"] * stage.update, optimizer=c["state"] * stage.optimizer, activations=free, logits=free
    )


def buffers(stage: StageMemory, c: Coefficients) -> Tensor:
    """Return the bytes of communicators and those that depend on nothing, shape (n,)."""
    return c["fixed_bytes"] + c["communicator_bytes"] * stage.communicators


def _stage(work: Workload, *, ends: Tensor, in_flight: Tensor, logits: Tensor) -> StageMemory:
    """Return the parts of a stage that holds `ends` parameters and `logits` numbers in addition to its layers.

    Without a buffer of their own, gradients appear as the backward pass frees activations. If there is only one micro-batch, they count as
    far as they exceed these.
    """
    layout, formats = work.layout, work.formats
    layers = layers_per_stage(work)
    held = (layers * held_per_layer(work) + ends) / layout.tp
    shared = sharded_parameters(work, held)
    resting = torch.where(layout.offload_parameters > 0, 0.0, shared)  # what ZeRO 3 keeps on the device between passes
    divides = layout.zero_stage >= formats.gradients_sharded_from
    gradients = torch.where(divides, torch.where(layout.zero_stage >= 3, resting, shared), held)
    waiting = torch.where(divides & (layout.num_microbatches > 1), held - shared, 0.0)  # some frameworks divide only at the end
    certain = torch.where(waits_for_last(work), waiting, 0.0)
    updated = torch.where(layout.zero_stage >= 1, shared, held)
    activations = _activations(work, layers, in_flight)
    fused, loss = _at_loss(work, logits, activations.at_work)
    of_all = _at_loss(work, layout.tp * logits, activations.at_work)
    gathered_logits, gathered_loss = of_all[0] - fused, of_all[1] - loss
    loss = torch.maximum(loss, _frozen_inputs(work, layers) - FUSED_LOSS_COPIES * fused)
    freed = activations.sharded + activations.replicated + fused + loss
    freed = torch.where((formats.gradient_buffer > 0) | (layout.num_microbatches > 1), 0.0, freed)
    return StageMemory(
        weights=_weights(work, ends, held, resting),
        gradients=(gradients * work.gradient_bytes - freed).clamp_min(0) + certain * work.gradient_bytes,
        optimizer=torch.where(layout.offload_optimizer > 0, 0.0, updated * work.optimizer_bytes),
        waiting_gradients=(waiting - certain) * work.gradient_bytes,
        update=gradients * work.gradient_bytes + torch.where(layout.offload_optimizer > 0, 0.0, updated * work.update_bytes),
        sharded_activations=activations.sharded,
        replicated_activations=activations.replicated,
        routed_activations=activations.routed,
        logits=fused,
        loss=loss,
        gathered_logits=gathered_logits,
        gathered_loss=gathered_loss,
        communicators=_communicators(work),
    )


def _weights(work: Workload, ends: Tensor, held: Tensor, resting: Tensor) -> Tensor:
    """Return the bytes of a stage's weights, shape (n,): whole below ZeRO 3, and then shards with the layers that are gathered at once.

    Args:
        ends: Parameters of the embedding and the output projection on the stage.
        held: Parameters that a rank holds without ZeRO.
        resting: Parameters that it keeps on the device between passes under ZeRO 3.
    """
    layout, formats = work.layout, work.formats
    layers = formats.gathered_layers * held_per_layer(work) / layout.tp
    gathered = torch.maximum(layers, formats.gathered_parameters.minimum(held)) * formats.gathered_weight_bytes
    gathered = torch.maximum(gathered, formats.gathers_ends * _ends_at_loss(work, ends))
    whole = held * formats.weight_bytes
    second = torch.where(layout.hpz > 1, held / layout.hpz, 0.0)  # the 16-bit copy of ZeRO++ in each small group
    alone = resting * formats.sharded_weight_bytes + gathered + second * formats.gathered_weight_bytes
    weights = torch.where(layout.zero_stage >= 3, torch.minimum(alone, whole + resting * formats.sharded_weight_bytes), whole)
    copied = work.machine.eight_bit * (1 - layout.fp8_weights) * formats.eight_bit_copy_bytes
    in_layers = held - ends / layout.tp
    weights = weights + copied * torch.where(layout.zero_stage >= 3, torch.minimum(layers, in_layers), in_layers)
    return weights + ends / layout.tp * formats.end_bytes / torch.where(layout.zero_stage >= 3, layout.shards, 1.0)


def _ends_at_loss(work: Workload, ends: Tensor) -> Tensor:
    """Return the bytes of the `ends` parameters outside layers when they are gathered, with one end's whole gradient, shape (n,)."""
    formats = work.formats
    gradient = torch.where(formats.trained == 1, ends.minimum(work.shape.head_parameters), 0.0)
    return (ends + gradient) / work.layout.tp * (formats.gathered_weight_bytes + formats.end_bytes)


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


def _activations(work: Workload, layers: Tensor, in_flight: Tensor) -> _Activations:
    """Return the activations of `layers` with these micro-batches in flight."""
    shape, layout, formats = work.shape, work.layout, work.formats
    token_bytes = work.tokens * formats.element_bytes
    linear = 1 - work.machine.eight_bit * formats.eight_bit_saving
    scores = torch.where(layout.flash > 0, 0.0, KEPT_SCORE_BYTES / formats.element_bytes * shape.heads * shape.seq_len)
    wide, copies, again = layout.wide_residuals, norm_copies(work), recomputed(work)
    tensors = activation_elements(work) + wide * replicated_elements(work) + copies
    everything, selected = (tensors + scores) * linear, selective_elements(work, tensors) * linear
    selective = torch.where(layout.recompute == 1, selected, everything)
    ring = torch.where(layout.cp_mode == 0, (layout.cp - 1) * shape.query_width, 0.0)  # each step's output, as Transformer Engine needs
    kept = again * (1 + wide) * shape.hidden + (1 - again) * selective + (1 - attention_again(work)) * ring
    kept = torch.where(layout.offload_activations > 0, 0.0, kept)
    at_work = token_bytes * _repeated(work, everything, selected) / layout.tp
    alike = replicated_elements(work) * (1 - replicated_again(work)) + (1 - again) * copies
    alike = torch.where(layout.offload_activations > 0, 0.0, alike) * (1 - 1 / layout.tp)
    alike = token_bytes * layers * in_flight * alike
    kept = token_bytes * layers * in_flight * kept / layout.tp
    routed = torch.where(layout.ep > 1, routed_elements(work) / activation_elements(work), 0.0) * (kept + at_work)
    divided = kept + at_work + (1 - layout.sequence_parallel) * alike
    return _Activations(sharded=divided, replicated=layout.sequence_parallel * alike, routed=routed, at_work=at_work)


def _repeated(work: Workload, everything: Tensor, selected: Tensor) -> Tensor:
    """Return the activations per token that the layer at work computes again or fetches, shape (n,), before tp divides them.

    Args:
        everything: Activations that the layer's backward pass needs.
        selected: Those that selective recomputation keeps.
    """
    layout = work.layout
    gradients = torch.where(work.shape.gated > 0, 2.0, 1.0) * work.shape.ffn  # beyond the activations that they have replaced by then
    selective = everything - selected + of_selective(work, scores=0.0, attention=0.0, operations=gradients)
    whole = (layout.recompute == 2) | (layout.offload_activations > 0)
    return torch.where(whole, everything + gradients, torch.where(layout.recompute == 1, selective, 0.0))


def _communicators(work: Workload) -> Tensor:
    """Return in how many kinds of groups a rank communicates, shape (n,)."""
    layout = work.layout
    return torch.stack([size > 1 for size in (work.replicas, layout.tp, layout.pp, layout.cp, layout.ep)]).sum(0).to(layout.tp.dtype)


def _logits(work: Workload) -> Tensor:
    """Return the number of a micro-batch's logits that a rank has at once, shape (n,)."""
    each = work.shape.logit_elements / work.layout.tp
    return work.tokens * torch.where(work.layout.chunked_loss > 0, torch.minimum(each, CHUNK_INPUTS * work.shape.hidden), each)
