"""Entry points of users' modules in parts: small ones, with what the example does not have."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oppa.problem.model import Model


class Plain:
    """Has an embedding, linear blocks and a head."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def embed(self) -> nn.Module:
        return nn.Embedding(self.model.vocab, self.model.hidden)

    def block(self, index: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(self.model.hidden), nn.Linear(self.model.hidden, self.model.hidden))

    def head(self) -> nn.Module:
        return nn.Linear(self.model.hidden, self.model.vocab)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())


class Headless(Plain):
    """Has no weights after the blocks, which predict as many tokens as they are wide."""

    def head(self) -> nn.Module:
        return nn.Identity()

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return super().loss(output, targets % self.model.hidden)


class Dropping(Plain):
    """Drops half of what its blocks compute."""

    def block(self, index: int) -> nn.Module:
        return nn.Sequential(super().block(index), nn.Dropout(0.5))


class Alike(Dropping):
    """Always trains on the same sequence."""

    def batch(self, step: int, sequences: Sequence[int]) -> tuple[Tensor, Tensor]:
        tokens = torch.arange(self.model.seq_len + 1).repeat(len(sequences), 1)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Still(Dropping):
    """Drops nothing, because its blocks are in evaluation mode."""

    def block(self, index: int) -> nn.Module:
        return super().block(index).eval()


class Blinking(Plain):
    """Has a loss that is no number in every other micro-batch."""

    count = 0

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        self.count += 1
        return super().loss(output, targets) * (math.nan if self.count % 2 else 1.0)


class Averaging(Plain):
    """Keeps running statistics of its embedded tokens."""

    def embed(self) -> nn.Module:
        return nn.Sequential(super().embed(), nn.BatchNorm1d(self.model.seq_len))
