"""The optimizer that a job asks for: torch's own, in one pass over all weights."""

from typing import Any

import torch

from oppa.problem.training import Training


def update_rule(training: Training) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Its class, and what it is made with."""
    if training.optimizer == "sgd":
        options = {"lr": training.learning_rate, "momentum": training.momentum}
        return torch.optim.SGD, {**options, "foreach": True}  # not fused, of which DTensor, and so FSDP2, knows nothing
    return torch.optim.AdamW, {"lr": training.learning_rate, "betas": training.adam_betas, "fused": True}
