"""Select torch's optimizer for a job, in a variant that updates all weights in one pass."""

from typing import Any

import torch

from oppa.problem.training import Training


def update_rule(training: Training) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return the class of the optimizer and its keyword arguments."""
    if training.optimizer == "sgd":
        options = {"lr": training.learning_rate, "momentum": training.momentum}
        return torch.optim.SGD, {**options, "foreach": True}  # not fused: DTensor, and so FSDP2, does not support it
    return torch.optim.AdamW, {"lr": training.learning_rate, "betas": training.adam_betas, "fused": True}
