"""Bytes on the fullest device at the peak of a step.

    memory = state * (weights + gradients + optimizer) + activation * (layers in flight + the layer at work) + logits + fixed

Notation (n rows):
    parts    bytes of PARTS, before any coefficient     (n, 7)
"""

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.stages import activation_elements, first_ends, held_per_layer, layers_per_stage
from oppa.cost.workload import Workload

PARTS = ("weights", "gradients", "optimizer", "waiting", "sharded", "replicated", "logits")


def memory(work: Workload, c: Coefficients) -> Tensor:
    """Bytes at the peak of the first or the last pipeline stage, whichever has more, shape (n,)."""
    return torch.maximum(_peak(first_stage(work), c), _peak(last_stage(work), c))


def parts(work: Workload) -> Tensor:
    """The parts of the first and of the last stage, side by side: what a configuration needs whatever the coefficients are."""
    return torch.cat([first_stage(work), last_stage(work)], dim=-1)


def first_stage(work: Workload) -> Tensor:
    """The parts of the first stage: the embedding, and most micro-batches in flight; with one stage, of the whole model."""
    logits = torch.where(work.layout.pp == 1, _logits(work), 0.0)
    return _parts(work, first_ends(work), work.layout.in_flight, logits)


def last_stage(work: Workload) -> Tensor:
    """The parts of the last stage: the output projection and its logits, one micro-batch in flight (all of them under GPipe)."""
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
    """The parts of a stage that holds `ends` parameters besides its layers."""
    layout, machine = work.layout, work.machine
    layers = layers_per_stage(work)
    held = (layers * held_per_layer(work) + ends) / layout.tp
    sharded = held / layout.dp
    one_layer = held_per_layer(work) / layout.tp  # ZeRO 3: the layer at work, gathered
    weights = torch.where(layout.zero_stage >= 3, sharded + one_layer, held)
    gradients = torch.where(layout.zero_stage >= 2, sharded, held)
    waiting = torch.where(layout.num_microbatches > 1, held - gradients, 0.0)  # ZeRO 2 and 3: some frameworks reduce at the end alone
    optimizer = torch.where(layout.zero_stage >= 1, sharded, held) * machine.optimizer_bytes
    states = weights * machine.element_bytes, gradients * machine.gradient_bytes, optimizer, waiting * machine.gradient_bytes
    return torch.stack([*states, *_activations(work, layers * in_flight), logits], dim=-1)


def _activations(work: Workload, layers: Tensor) -> tuple[Tensor, Tensor]:
    """What `layers` keep for the backward pass and what the layer at work adds: divided by tp, and what every rank may hold whole."""
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
    """One copy of a micro-batch's logits."""
    return work.tokens * work.shape.vocab / work.layout.tp * work.machine.element_bytes
