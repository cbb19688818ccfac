"""A training loop of one's own, in float64: micro-batches differ in size, and ranks in theirs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

SIZES = ((4, 3), (5, 1))
"""Tokens of each micro-batch, of even and of odd ranks; the last one is smaller."""


class OwnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class OwnLoop:
    """Trains so that each token counts the same in the gradient of a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = OwnModel().double()

    def backward(
        self, model: nn.Module, step: int, rank: int, world: int, local: Callable[[Any], AbstractContextManager[None]] = nullcontext
    ) -> tuple[int, ...]:
        """Run the backward passes of one rank; return the tokens of its micro-batches. All but the last run within `local`."""
        losses = self.losses(model, step, rank, world)
        for loss in losses:
            with nullcontext() if loss is losses[-1] else local(model):
                loss().backward()
        return SIZES[rank % 2]

    def losses(self, model: nn.Module, step: int, rank: int, world: int) -> list[Callable[[], Tensor]]:
        """Return the loss of each micro-batch of one rank."""
        total = sum(sum(SIZES[peer % 2]) for peer in range(world))
        # Replicas are averaged, not summed: hence times their number.
        factors = [size * world / total for size in SIZES[rank % 2]]
        return [lambda index=index: self.mean_loss(model, step, rank, index) * factors[index] for index in range(len(factors))]

    def mean_loss(self, model: nn.Module, step: int, rank: int, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(100 * step + 10 * rank + index)
        x = torch.randn(SIZES[rank % 2][index], 6, generator=generator, dtype=torch.float64)
        loss: Tensor = (model(x) - x.flip(-1)).square().mean()
        return loss
