"""Select torch's optimizer for a job, in a variant that updates all weights in one pass, and the weights that decay."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from oppa.problem.training import Training


def update_rule(training: Training) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return the class of the optimizer and its keyword arguments, without the weight decay (`groups_of`)."""
    if training.optimizer == "sgd":
        options = {"lr": training.learning_rate, "momentum": training.momentum}
        return torch.optim.SGD, {**options, "foreach": True}  # not fused: DTensor, and so FSDP2, does not support it
    return torch.optim.AdamW, {"lr": training.learning_rate, "betas": training.adam_betas, "fused": True}


def groups_of(parameters: Iterable[nn.Parameter], training: Training) -> list[dict[str, Any]]:
    """Return torch's parameter groups: matrices, which decay, then parameters with fewer dimensions, such as norms and biases.

    The groups are the same under `decay_all`, since they determine which rank updates a parameter under ZeRO-1.
    """
    matrices, others = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in parameters:
        shape = getattr(parameter, "ds_shape", parameter.shape)  # DeepSpeed flattens a parameter that it shards
        (matrices if decays(len(shape)) else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": training.decay},
        {"params": others, "weight_decay": training.decay if training.decay_all else 0.0},
    ]
    return [group for group in groups if group["params"]]


def decays(dimensions: int) -> bool:
    """Return whether weight decay applies to a parameter with this number of dimensions, as in GPT-2's and Llama's trainers."""
    return dimensions >= 2
