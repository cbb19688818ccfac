"""Count the targets that a model predicts correctly."""

import torch
from torch import Tensor

from oppa.training.model.tensor_parallel import IGNORED


def hits(output: Tensor, targets: Tensor) -> Tensor | None:
    """Return the number of correct predictions and of targets, shape (2,); None if the outputs are not one per class.

    Args:
        output: One value per class along the last dimension, shape (..., classes); the largest is the prediction.
        targets: Class numbers, or `tensor_parallel.IGNORED`, shape (...).
    """
    if output.shape[:-1] != targets.shape or targets.is_floating_point():
        return None
    right = output.argmax(-1) == targets  # IGNORED is negative, so it never equals a class
    return torch.stack((right, targets != IGNORED)).flatten(1).sum(1)
