"""Compute gradients of single samples in one pass, as exact values for the norm test's estimates (Lau et al. 2025, eq. 3).

It serves oracles and small models.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from oppa.errors import InputError
from oppa.training.statistics.noise_scale import Norms

Loss = Callable[[Tensor, Tensor], Tensor]
"""Returns the mean loss of a model's outputs and the targets."""


def per_sample_norms(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, *, chunk: int | None = None) -> Norms:
    """Return the squared norms of the gradients of single samples and of their mean; sizes are in samples.

    Args:
        model: Model to differentiate by its trainable parameters; it is not changed. Layers that depend on other samples of the batch, or
            on random numbers, have no gradient of a single sample.
        loss: Mean loss.
        inputs: Inputs of all samples, shape (b, ...).
        targets: Targets of all samples, shape (b, ...).
        chunk: Samples that are processed at once, each with the memory of all gradients; by default, all.

    Raises:
        InputError: if there are fewer than two samples, or not as many targets.
    """
    if (count := len(inputs)) < 2 or len(targets) != count:
        raise InputError(
            f"{count} inputs and {len(targets)} targets give no variance", hint="give at least two samples, each with its target"
        )
    learning = {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}
    rest = {name: each.detach() for name, each in (*model.named_parameters(), *model.named_buffers()) if name not in learning}

    def loss_of(parameters: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        return loss(functional_call(model, (parameters, rest), (one.unsqueeze(0),)), target.unsqueeze(0))

    gradients_of = vmap(grad(loss_of), in_dims=(None, 0, 0))
    small, sums = 0.0, dict[str, Tensor]()
    for some, right in zip(inputs.split(chunk or count), targets.split(chunk or count), strict=True):
        for name, each in gradients_of(learning, some, right).items():
            small += float(each.double().square().sum())
            total = each.sum(0, dtype=torch.float64)
            sums[name] = sums[name] + total if name in sums else total
    big = sum(float((total / count).square().sum()) for total in sums.values())
    return Norms(small=small / count, big=big, small_tokens=1.0, big_tokens=float(count))
