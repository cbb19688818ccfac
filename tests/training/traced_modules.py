"""Entry points to trace: one like the built-in model, one with unusual blocks, and some that cannot be traced."""

import os
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oppa.problem.model import Model
from oppa.training.model.blocks import Block, FeedForward, norm_of, rotation_of
from oppa.training.model.embeddings import TokenEmbedding
from oppa.training.model.tensor_parallel import WHOLE, ColumnLinear


class Layer(nn.Module):
    """Computes a layer of the built-in model, with rotations of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.block, self.width = Block(model, WHOLE, "none", WHOLE, 1), model.head_dim

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x, *rotation_of(x.shape[1], self.width, x.device))
        return out


class Plain:
    """Computes the built-in model, in parts."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def embed(self) -> nn.Module:
        return _initialised(TokenEmbedding(self.model, WHOLE))

    def block(self, index: int) -> nn.Module:
        return _initialised(Layer(self.model))

    def head(self) -> nn.Module:
        return _initialised(nn.Sequential(norm_of(self.model, WHOLE), ColumnLinear(self.model.hidden, self.model.vocab, WHOLE, bias=False)))

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())


class ThriceLayer(Layer):
    """Computes a layer with three feed-forward networks after two norms."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.norm, self.more = norm_of(model, WHOLE), nn.ModuleList(FeedForward(model, WHOLE) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        normed = self.norm(x)
        return x + sum((torch.tanh(more(normed)) for more in self.more), start=torch.zeros_like(x))


class Thrice(Plain):
    """Blocks whose feed-forward parts the dimensions do not state."""

    def block(self, index: int) -> nn.Module:
        return _initialised(ThriceLayer(self.model))


class Raising(Plain):
    """Blocks that cannot be created."""

    def block(self, index: int) -> nn.Module:
        raise ValueError("no block today\nand none tomorrow")


class Reading(Plain):
    """Computes a loss that depends on values, which fake tensors do not have."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return super().loss(output, targets) if output.sum().item() > 0 else output.mean()


class Greedy(Plain):
    """Allocates real memory, more than a trace may have."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.real = np.ones(2**30)


class Endless(Plain):
    """Waits forever, so that the entry point never returns."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        time.sleep(600)


class Exiting(Plain):
    """Ends its process."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        os._exit(7)


def _initialised(module: nn.Module) -> nn.Module:
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.02)
    return module
