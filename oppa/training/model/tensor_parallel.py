"""Implement tensor parallelism with linear layers, of which each rank holds a slice, and two autograd functions that join them.

All tensors are plain (Megatron-LM, Shoeybi et al. 2019, section 3). The layers therefore compose with DDP, ZeRO, FSDP2 and every pipeline
schedule, which DTensor parameters do not, and they avoid DTensor's dispatch.

    copy_to     forward: identity     backward: sum over the group     before a column-parallel layer
    reduce_from forward: sum          backward: identity               after a row-parallel layer

With sequence parallelism, each rank holds a part of the tokens outside these layers (Korthikanti et al. 2022, section 4.2.2). Norms and
residuals then take 1 / tp of the memory. An all-reduce becomes an all-gather before the layers and a reduce-scatter after them.

    enter       forward: all-gather, or identity       backward: reduce-scatter, or sum      before column-parallel layers
    leave       forward: reduce-scatter, or sum        backward: all-gather, or identity     after row-parallel layers
    own_part    forward: this rank's part of tokens    backward: all-gather                  after the embedding
    shared      forward: identity                      backward: sum over the group          weights that act on a rank's tokens alone
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
    """Describes this rank's share of a group: part number `index` of `size`, in tensor parallelism, among experts or among replicas."""

    index: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    sequence: bool = False
    """True for a tensor-parallel slice if each rank holds a part of the tokens outside tensor-parallel layers (sequence parallelism)."""

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


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Slice) -> Tensor:
        ctx.tp = tp
        return _gathered(x, tp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradients[0], ctx.tp), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Slice) -> Tensor:
        ctx.tp = tp
        return _scattered(x, tp)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradients[0], ctx.tp), None


class _OwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Slice) -> Tensor:
        ctx.tp = tp
        mine: Tensor = x.unflatten(1, (tp.size, -1))[:, tp.index]
        return mine.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradients[0], ctx.tp), None


def enter(x: Tensor, tp: Slice) -> Tensor:
    """Return all tokens of `x` for column-parallel layers; the backward pass sums the gradients over the group."""
    return _Gather.apply(x, tp) if tp.sequence else copy_to(x, tp)  # type: ignore[no-untyped-call]


def leave(x: Tensor, tp: Slice) -> Tensor:
    """Return the sum over the group of what row-parallel layers computed; with sequence parallelism, this rank's part of its tokens."""
    return _Scatter.apply(x, tp) if tp.sequence else reduce_from(x, tp)  # type: ignore[no-untyped-call]


def own_part(x: Tensor, tp: Slice) -> Tensor:
    """Return this rank's part of the tokens of `x`, which is the same on all ranks; without sequence parallelism, all of them."""
    return _OwnPart.apply(x, tp) if tp.sequence else x  # type: ignore[no-untyped-call]


def shared(weight: Tensor, tp: Slice) -> Tensor:
    """Return a weight that acts on this rank's part of the tokens; the backward pass sums its gradients, so that they agree."""
    return copy_to(weight, tp) if tp.sequence else weight


def _gathered(x: Tensor, tp: Slice) -> Tensor:
    """Return the tokens of all ranks, along dimension 1."""
    parts = x.new_empty((tp.size * x.shape[0], *x.shape[1:]))  # gloo gathers along dimension 0
    dist.all_gather_single(parts, x.contiguous(), group=tp.group)
    whole: Tensor = parts.unflatten(0, (tp.size, -1)).movedim(0, 1).flatten(1, 2)
    return whole


def _scattered(x: Tensor, tp: Slice) -> Tensor:
    """Return this rank's part, along dimension 1, of the sum over the group."""
    parts = x.unflatten(1, (tp.size, -1)).movedim(1, 0).contiguous()
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter_single(mine, parts.flatten(0, 1), group=tp.group)
    return mine


@runtime_checkable
class Sliced(Protocol):
    """Lists the tensors of a module of which this rank holds parts."""

    def pieces(self, name: str) -> list[Piece]:
        """Return the pieces of the parameter with this global name, from its first rows to its last."""


class SplitLinear(nn.Linear):
    """Holds only this rank's `part` of the dimension `dim` of a linear layer's weight; a bias is split with the outputs, else whole."""

    def __init__(self, full_shape: tuple[int, int], dim: int, tp: Slice, *, bias: bool = False) -> None:
        self.part = tp.of(full_shape[dim])
        outputs, inputs = (len(self.part) if axis == dim else length for axis, length in enumerate(full_shape))
        super().__init__(inputs, outputs, bias=bias)
        self.full_shape, self.dim, self.tp = full_shape, dim, tp

    def pieces(self, name: str) -> list[Piece]:
        """Return this rank's part of the weight or the bias."""
        return [Piece.of(name, self.full_shape if name.endswith(".weight") else self.full_shape[:1], self.dim, self.part)]


class ColumnLinear(SplitLinear):
    """Splits a linear layer over its outputs; its input must have passed `enter`."""

    def __init__(self, inputs: int, outputs: int, tp: Slice, *, bias: bool = False) -> None:
        super().__init__((outputs, inputs), 0, tp, bias=bias)


class RowLinear(SplitLinear):
    """Splits a linear layer over its inputs, sums its output over the group, and then adds its bias once."""

    def __init__(self, inputs: int, outputs: int, tp: Slice, *, bias: bool = False) -> None:
        super().__init__((outputs, inputs), 1, tp, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map shape (..., inputs of this rank) to (..., outputs)."""
        if self.tp.size == 1:
            return super().forward(x)
        out = leave(F.linear(x, self.weight), self.tp)
        return out if self.bias is None else out + shared(self.bias, self.tp).to(out.dtype)


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
