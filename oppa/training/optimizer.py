"""The optimizer that a job asks for: torch's own, fused."""

from typing import Any

import torch

from oppa.problem.training import Training


def update_rule(training: Training) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Its class, and what it is made with."""
    if training.optimizer == "sgd":
        return torch.optim.SGD, {"lr": training.learning_rate, "momentum": training.momentum, "fused": True}
    return torch.optim.AdamW, {"lr": training.learning_rate, "betas": training.adam_betas, "fused": True}
