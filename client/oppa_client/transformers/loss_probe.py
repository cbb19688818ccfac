"""Find out whether a loss is a sum that is divided by the labels of a step, or a mean over a micro-batch.

The `Trainer` takes a model whose `forward` has `**kwargs` to divide its loss by `num_items_in_batch`. Many such models return a mean. Its
gradient would then grow with the number of micro-batches, which changes under oppa.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

CHANGE = 0.1
"""Least relative change of a loss that is divided by twice the labels. It is 0.5, or less if the loss has a term that is not divided."""


def is_divided(trainer: Any, model: Any, inputs: dict[str, Any]) -> bool | None:
    """Return True if the `Trainer`'s loss is divided by `num_items_in_batch`, False if it is a mean; all ranks call it, and agree.

    The loss of a micro-batch is computed twice without gradients, as a training step does. Weights, buffers and random numbers stay.

    Args:
        trainer: The `Trainer`.
        model: The wrapped model.
        inputs: Inputs of a micro-batch.

    Returns:
        None if no rank can tell yet, as from a micro-batch without labels.
    """
    model.train()
    if isinstance(model, DistributedDataParallel):  # whose own forward pass decides when buffers are sent
        model = model.module
    inputs = trainer._prepare_inputs(dict(inputs))
    losses = []
    for items in (1, 2):
        with _unchanged(model, trainer.args.device), torch.no_grad(), trainer.compute_loss_context_manager():
            count = torch.tensor(items, device=trainer.args.device)
            losses.append(trainer.compute_loss(model, dict(inputs), num_items_in_batch=count).detach().float().mean())
    one, two = torch.stack(losses).tolist()
    change = abs(one - two) / abs(one) if one else float("nan")
    found = torch.tensor([[change > CHANGE, change <= CHANGE]], device=trainer.args.device)
    divided, mean = trainer.accelerator.gather(found).any(dim=0).tolist()
    return True if divided else False if mean else None


@contextlib.contextmanager
def _unchanged(model: Any, device: torch.device) -> Iterator[None]:
    """Restore random numbers, and the buffers that a forward pass may change, such as those of batch normalisation."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    states = random.getstate(), np.random.get_state()
    accelerator = {} if device.type == "cpu" else {"device_type": device.type}
    try:
        with torch.random.fork_rng([] if device.type == "cpu" else [device], **accelerator):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
