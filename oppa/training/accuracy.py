"""How many targets a model's outputs hit."""

import torch
from torch import Tensor

from oppa.training.tensor_parallel import IGNORED


def hits(output: Tensor, targets: Tensor) -> Tensor | None:
    """Targets that the largest output is for, and targets in all, shape (2,); None where outputs are not one for each class.

    Args:
        output: Of all classes along the last dimension, shape (..., classes).
        targets: Class numbers, or `tensor_parallel.IGNORED`, shape (...).
    """
    if output.shape[:-1] != targets.shape or targets.is_floating_point():
        return None
    right = output.argmax(-1) == targets  # what is IGNORED is no class
    return torch.stack((right, targets != IGNORED)).flatten(1).sum(1)
