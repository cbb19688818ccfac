"""Send rows of a tensor to the ranks of a group and receive theirs; gradients take the reverse way."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.training.model.tensor_parallel import Slice


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: list[int], back: list[int], group: Slice, gradient: float) -> Tensor:
        ctx.arguments = there, back, group, gradient
        return _all_to_all(rows, there, back, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        there, back, group, gradient = ctx.arguments
        returned = _all_to_all(gradients[0], back, there, group)
        return returned if gradient == 1 else returned * gradient, None, None, None, None


def exchange(rows: Tensor, there: list[int], back: list[int], group: Slice, *, gradient: float = 1) -> Tensor:
    """Send `there[r]` rows to rank r of `group` and receive `back[r]` from it; gradients take the reverse way, times `gradient`."""
    return _Exchange.apply(rows, there, back, group, gradient)  # type: ignore[no-untyped-call, no-any-return]


def _all_to_all(rows: Tensor, there: list[int], back: list[int], group: Slice) -> Tensor:
    arrived = rows.new_empty((sum(back), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows.contiguous(), back, there, group=group.group)
    return arrived
