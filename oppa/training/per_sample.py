"""Gradients of single samples, all at once: what the norm test estimates, for oracles and small models (Lau et al. 2025, eq. 3)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from oppa.errors import InputError
from oppa.training.noise_scale import Norms

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of what a model says of some samples and what is right, the mean."""


def per_sample_norms(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, *, chunk: int | None = None) -> Norms:
    """Squared norms of the gradients of single samples, and of their mean, in samples.

    Args:
        model: Its parameters that learn; nothing of it changes. Layers that look at other samples of the batch, or at chance, have no
            gradient of one sample.
        inputs: Shape (b, ...), as `targets`.
        chunk: So many samples at a time; each takes the memory of all gradients. All unless given.

    Raises:
        InputError: for fewer than two samples.
    """
    if (count := len(inputs)) < 2 or len(targets) != count:
        raise InputError(f"{count} inputs and {len(targets)} targets", hint="a variance takes two samples or more, each with its target")
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
