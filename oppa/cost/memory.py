"""Predict the bytes on the fullest device at the peak of a step.

    memory = state * (weights + gradients + optimizer) + activation * (layers in flight + the layer at work) + logits + fixed

Notation (n rows):
    parts    bytes of PARTS, before coefficients apply     (n, 7)
"""

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.stages import activation_elements, first_ends, held_per_layer, layers_per_stage
from oppa.cost.workload import Workload

PARTS = ("weights", "gradients", "optimizer", "waiting", "sharded", "replicated", "logits")


def memory(work: Workload, c: Coefficients) -> Tensor:
    """Return the peak bytes of the first or the last pipeline stage, whichever is larger, shape (n,)."""
    return torch.maximum(_peak(first_stage(work), c), _peak(last_stage(work), c))


def parts(work: Workload) -> Tensor:
    """Return the parts of the first and of the last stage, shape (n, 14); they do not depend on the coefficients."""
    return torch.cat([first_stage(work), last_stage(work)], dim=-1)


def first_stage(work: Workload) -> Tensor:
    """Return the parts of the first stage, which has the embedding and most micro-batches in flight, shape (n, 7).

    A single stage holds the whole model.
    """
    logits = torch.where(work.layout.pp == 1, _logits(work), 0.0)
    return _parts(work, first_ends(work), work.layout.in_flight, logits)


def last_stage(work: Workload) -> Tensor:
    """Return the parts of the last stage, which has the output projection and its logits, shape (n, 7).

    It has one micro-batch in flight; under GPipe, all of them.
    """
    layout = work.layout
    gpipe = layout.in_flight >= layout.num_microbatches
    embedding = torch.where(layout.pp == 1, work.shape.embedding_parameters, 0.0)
    head = torch.where((layout.pp == 1) & (work.shape.tied > 0), 0.0, work.shape.head_parameters)
    return _parts(work, embedding + head, torch.where(gpipe, layout.in_flight, 1.0), _logits(work))


def _peak(parts: Tensor, c: Coefficients) -> Tensor:
    weights, gradients, optimizer, waiting, sharded, replicated, logits = parts.unbind(-1)
    state = c["state"] * (weights + gradients + optimizer + c["whole_gradients"] * waiting)
    activations = c["activation"] * (sharded + c["replicated"] * replicated)
    return state + activations + c["logit_copies"] * logits + c["fixed_bytes"]


def _parts(work: Workload, ends: Tensor, in_flight: Tensor, logits: Tensor) -> Tensor:
    """Return the parts of a stage that holds `ends` parameters in addition to its layers, shape (n, 7)."""
    layout, machine = work.layout, work.machine
    layers = layers_per_stage(work)
    held = (layers * held_per_layer(work) + ends) / layout.tp
    sharded = held / layout.dp
    one_layer = held_per_layer(work) / layout.tp  # ZeRO 3 gathers the layer at work
    weights = torch.where(layout.zero_stage >= 3, sharded + one_layer, held)
    gradients = torch.where(layout.zero_stage >= 2, sharded, held)
    waiting = torch.where(layout.num_microbatches > 1, held - gradients, 0.0)  # under ZeRO 2 and 3 some frameworks reduce only at the end
    optimizer = torch.where(layout.zero_stage >= 1, sharded, held) * machine.optimizer_bytes
    states = weights * machine.element_bytes, gradients * machine.gradient_bytes, optimizer, waiting * machine.gradient_bytes
    return torch.stack([*states, *_activations(work, layers * in_flight), logits], dim=-1)


def _activations(work: Workload, layers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bytes of activations in two parts, shape (n,) each: divided by tp, and possibly replicated on every rank.

    The first part is what `layers` keep for the backward pass, and what the layer at work recomputes.
    """
    shape, layout = work.shape, work.layout
    token_bytes = work.tokens * work.machine.element_bytes
    everything = activation_elements(work)
    attention = 3 * shape.hidden + 2 * shape.kv_width
    options = torch.stack([everything, everything - attention, shape.hidden])
    kept = options.gather(0, layout.recompute.long()[None])[0]
    at_work = torch.where(layout.recompute > 0, everything, 0.0)
    hidden = torch.where(layout.recompute == 2, 0.0, 4 * shape.hidden) * (1 - 1 / layout.tp)
    return token_bytes * (layers * kept + at_work) / layout.tp, token_bytes * layers * hidden


def _logits(work: Workload) -> Tensor:
    """Return the bytes of one copy of a micro-batch's logits, shape (n,)."""
    return work.tokens * work.shape.vocab / work.layout.tp * work.machine.element_bytes
