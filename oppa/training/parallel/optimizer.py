"""Select torch's optimizer for a job, in a variant that updates all weights in one pass, and the weights that decay."""

from collections.abc import Callable, Iterable, Sequence
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


def groups_of(
    parameters: Iterable[nn.Parameter],
    training: Training,
    shape_of: Callable[[nn.Parameter], Sequence[int]] = lambda parameter: parameter.shape,
) -> list[dict[str, Any]]:
    """Return torch's parameter groups: matrices, which decay, then parameters with fewer dimensions, such as norms and biases.

    The groups are the same under `decay_all`, since they determine which rank updates a parameter under ZeRO-1.

    Args:
        parameters: Parameters of the optimizer.
        training: Training settings of the job.
        shape_of: Returns the shape of a parameter, of which a framework may hold a flat shard.
    """
    matrices, others = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in parameters:
        (matrices if decays(len(shape_of(parameter))) else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": training.decay},
        {"params": others, "weight_decay": training.decay if training.decay_all else 0.0},
    ]
    return [group for group in groups if group["params"]]


def decays(dimensions: int) -> bool:
    """Return whether weight decay applies to a parameter with this number of dimensions, as in GPT-2's and Llama's trainers."""
    return dimensions >= 2
