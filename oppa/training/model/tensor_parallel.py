"""Implement tensor parallelism with linear layers, of which each rank holds a slice, and two autograd functions that join them.

All tensors are plain (Megatron-LM, Shoeybi et al. 2019, section 3). The layers therefore compose with DDP, ZeRO, FSDP2 and every pipeline
schedule, which DTensor parameters do not, and they avoid DTensor's dispatch.

    copy_to     forward: identity     backward: sum over the group     before a column-parallel layer
    reduce_from forward: sum          backward: identity               after a row-parallel layer
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from oppa.training.model.tensor_slices import Piece


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """This rank's share of a group: part number `index` of `size`, in tensor parallelism, among experts or among replicas."""

    index: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def of(self, length: int) -> range:
        """Return this rank's part of `length` rows; the sizes of parts differ by at most one."""
        return range(length * self.index // self.size, length * (self.index + 1) // self.size)


WHOLE = Slice()
"""The slice of a rank without peers."""


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def copy_to(x: Tensor, tp: Slice) -> Tensor:
    """Return `x`; the backward pass sums its gradients over the group."""
    return x if tp.size == 1 else _CopyTo.apply(x, tp.group)  # type: ignore[no-untyped-call]


def reduce_from(x: Tensor, tp: Slice) -> Tensor:
    """Return the sum of `x` over the group; gradients pass unchanged."""
    return x if tp.size == 1 else _ReduceFrom.apply(x, tp.group)  # type: ignore[no-untyped-call]


@runtime_checkable
class Sliced(Protocol):
    """A module with tensors of which this rank holds parts."""

    def pieces(self, name: str) -> list[Piece]:
        """Return the pieces of the parameter with this global name, from its first rows to its last."""
        ...


class SplitLinear(nn.Linear):
    """A linear layer with only this rank's `part` of the weight's dimension `dim`; a bias is split with the outputs, else whole."""

    def __init__(self, full_shape: tuple[int, int], dim: int, tp: Slice, *, bias: bool = False) -> None:
        self.part = tp.of(full_shape[dim])
        outputs, inputs = (len(self.part) if axis == dim else length for axis, length in enumerate(full_shape))
        super().__init__(inputs, outputs, bias=bias)
        self.full_shape, self.dim, self.tp = full_shape, dim, tp

    def pieces(self, name: str) -> list[Piece]:
        """Return this rank's part of the weight or the bias."""
        return [Piece.of(name, self.full_shape if name.endswith(".weight") else self.full_shape[:1], self.dim, self.part)]


class ColumnLinear(SplitLinear):
    """A linear layer that is split over its outputs; its input must have passed `copy_to`."""

    def __init__(self, inputs: int, outputs: int, tp: Slice, *, bias: bool = False) -> None:
        super().__init__((outputs, inputs), 0, tp, bias=bias)


class RowLinear(SplitLinear):
    """A linear layer that is split over its inputs; it sums its output over the group, and then adds its bias once."""

    def __init__(self, inputs: int, outputs: int, tp: Slice, *, bias: bool = False) -> None:
        super().__init__((outputs, inputs), 1, tp, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map shape (..., inputs of this rank) to (..., outputs)."""
        if self.tp.size == 1:
            return super().forward(x)
        out = reduce_from(F.linear(x, self.weight), self.tp)
        return out if self.bias is None else out + self.bias.to(out.dtype)


IGNORED = -100
"""Target that is not counted; it is the default `ignore_index` of torch's cross entropy."""


def cross_entropy(logits: Tensor, targets: Tensor, vocab: int, tp: Slice, *, counted: Tensor | None = None) -> Tensor:
    """Return the mean negative log likelihood from logits of which each rank holds its slice of the vocabulary.

    Args:
        logits: Shape (..., rows of this rank).
        targets: Token ids below `vocab`, or IGNORED, shape (...).
        vocab: Size of the vocabulary, over all ranks.
        tp: This rank's slice.
        counted: Number to divide the sum by; by default that of the targets that are not IGNORED.
    """
    logits = logits.float()
    if tp.size == 1:
        if counted is None:
            return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum") / counted
    part = tp.of(vocab)
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=tp.group)
    shifted = logits - largest.unsqueeze(-1)
    partition = reduce_from(shifted.exp().sum(-1), tp)
    local = targets - part.start
    here = (local >= 0) & (local < len(part))
    chosen = shifted.gather(-1, local.clamp(0, len(part) - 1).unsqueeze(-1)).squeeze(-1)
    each = partition.log() - reduce_from(chosen * here, tp)
    own = targets != IGNORED
    return (each * own).sum() / (own.sum() if counted is None else counted)
