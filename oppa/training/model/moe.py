"""Define a mixture of experts: a router sends each token to the best k of E feed-forward networks, which are spread over `ep` ranks.

The ep ranks are data-parallel ranks with different tokens. There is no capacity limit and no token is dropped, so that every layout
computes the same. Tensor parallelism splits each expert like any feed-forward network.

Notation (b sequences, s tokens each, T = b s, h hidden, E experts, k experts per token, n rows = choices that arrive at a rank):
    chosen     experts of each token                        (T, k)
    weights    weight of each choice                        (T, k)
    counts     number of choices of each expert             (E,)
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from oppa.problem.model import Model
from oppa.training.model.all_to_all import exchange
from oppa.training.model.tensor_parallel import WHOLE, Slice, copy_to, enter, leave, shared
from oppa.training.model.tensor_slices import Piece

_BALANCE = 0.01
"""Weight of the balance loss (Switch Transformer, Fedus et al. 2021, section 2.2)."""


class Mixture(nn.Module):
    """Routes tokens to feed-forward networks; its gradients include those of a loss that balances the load of the experts."""

    def __init__(self, model: Model, tp: Slice, ep: Slice, micro_batches: int, *, cp: Slice = WHOLE) -> None:
        super().__init__()
        self.count, self.active, self.tp, self.ep, self.cp = model.experts, model.experts_per_token, tp, ep, cp
        self.micro_batches = micro_batches
        self.router = nn.Linear(model.hidden, model.experts, bias=False)
        self.experts = Experts(model, ep.of(model.experts), tp)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mixture; the shape (b, s, h) stays."""
        with torch.autocast(x.device.type, enabled=False):
            probabilities = F.linear(x.float(), shared(self.router.weight, self.tp).float()).softmax(-1)
        weights, chosen = probabilities.topk(self.active)
        if self.active > 1:  # a single choice keeps its probability as weight, so that the router learns from it (Switch Transformer)
            weights = weights / weights.sum(-1, keepdim=True)
        balance = _BALANCE * balance_loss(probabilities, chosen, self.cp, self.tp) / self.micro_batches
        tokens = enter(x, self.tp)
        if self.tp.sequence:
            chosen = enter(chosen, self.tp)
        mixed = self._mix(tokens.flatten(0, 1), enter(weights, self.tp).flatten(0, 1), chosen.flatten(0, 1))
        out = leave(mixed.view_as(tokens), self.tp)
        return with_gradient_of(out, balance)

    def _mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts, shape (T, h)."""
        choices = chosen.flatten()
        by_expert = choices.argsort(stable=True)
        rows = self._at_experts(x[by_expert // self.active], choices.bincount(minlength=self.count))
        by_token = rows[by_expert.argsort()].view(-1, self.active, x.shape[1])
        return torch.sum(by_token * weights.unsqueeze(-1).to(rows.dtype), 1)

    def _at_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send rows, sorted by expert, to the ranks of their experts, and return the experts' outputs in the same order."""
        if self.ep.size == 1:
            out: Tensor = self.experts(rows, counts.tolist())
            return out
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.ep.group)
        sent, received = counts.view(self.ep.size, -1), received.view(self.ep.size, -1)
        there, back = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = exchange(rows, there, back, self.ep, gradient=self.ep.size)
        # Rows arrive sorted by sender, and by expert within each sender.
        expert = torch.arange(received.shape[1], device=rows.device).repeat(self.ep.size).repeat_interleave(received.flatten())
        by_expert = expert.argsort(stable=True)
        done = self.experts(arrived[by_expert], received.sum(0).tolist())
        # Between the two exchanges, gradients are the mean over the ep ranks, not the sum. Averaging an expert's gradients over its
        # replicas then gives the mean over all data-parallel ranks, as for any other weight.
        return exchange(done[by_expert.argsort()], back, there, self.ep, gradient=1 / self.ep.size)


class Experts(nn.Module):
    """Holds the experts of this rank. Their matrices of one kind are stacked by rows, so that FSDP2 can shard them evenly."""

    def __init__(self, model: Model, mine: range, tp: Slice) -> None:
        super().__init__()
        self.approximate = model.gelu_approximation
        inner, outer = (model.ffn, model.hidden), (model.hidden, model.ffn)
        self.gate = Stack(mine, inner, 0, tp, bias=model.biases) if model.gated else None
        self.up = Stack(mine, inner, 0, tp, bias=model.biases)
        self.down = Stack(mine, outer, 1, tp, bias=model.biases)

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Apply each expert to its rows.

        Args:
            rows: Rows sorted by expert, shape (n, h).
            counts: Number of rows of each expert.

        Returns:
            This tensor-parallel rank's summand of the outputs, shape (n, h).
        """
        up = self.up(rows, counts)
        inner = F.gelu(up, approximate=self.approximate) if self.gate is None else F.silu(self.gate(rows, counts)) * up
        out: Tensor = self.down(inner, counts)
        return out


class Stack(nn.Module):
    """Stacks the linear layers of the experts in `mine`; this tensor-parallel rank holds a part of dimension `dim` of each."""

    def __init__(self, mine: range, full_shape: tuple[int, int], dim: int, tp: Slice, *, bias: bool) -> None:
        super().__init__()
        self.mine, self.full_shape, self.dim, self.tp, self.part = mine, full_shape, dim, tp, tp.of(full_shape[dim])
        outputs, inputs = (len(self.part) if axis == dim else length for axis, length in enumerate(full_shape))
        self.weight = nn.Parameter(torch.empty(len(mine) * outputs, inputs))
        self.bias = nn.Parameter(torch.empty(len(mine) * outputs)) if bias else None

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Apply each expert's layer to its rows; a layer that is split over its inputs returns this rank's summand."""
        groups, weights = rows.split(counts), self.weight.unflatten(0, (len(self.mine), -1)).unbind()
        if self.bias is None:
            return torch.cat([F.linear(*layer) for layer in zip(groups, weights, strict=True)])
        # Each summand has an equal share of the bias; `copy_to` sums the gradients of the bias.
        bias = self.bias if self.dim == 0 else copy_to(self.bias, self.tp) / self.tp.size
        biases = bias.unflatten(0, (len(self.mine), -1)).unbind()
        return torch.cat([F.linear(*layer) for layer in zip(groups, weights, biases, strict=True)])

    def pieces(self, name: str) -> list[Piece]:
        """Return the pieces of a parameter, one per expert of this rank: each expert is a whole tensor of its own."""
        shape = self.full_shape if name.endswith("weight") else self.full_shape[:1]
        return [Piece.of(f"{name}/{expert}", shape, self.dim, self.part) for expert in self.mine]


def balance_loss(probabilities: Tensor, chosen: Tensor, cp: Slice = WHOLE, tp: Slice = WHOLE) -> Tensor:
    """Return the imbalance of the experts' load; 1 if it is equal (Switch Transformer, section 2.2, for k choices).

    It is computed per sequence and averaged, as in DeepSeek-V3 (section 2.1.2), not over a micro-batch. It is therefore independent of
    how a layout splits the batch.

    Args:
        probabilities: Probabilities of the router, shape (b, s, E).
        chosen: Experts of each token, shape (b, s, k).
        cp: This rank's part of the sequences, if it has only a part of each; the loss is then the mean over the ranks.
        tp: This rank's slice; with sequence parallelism, the loss is the sum over the ranks.
    """
    share = F.one_hot(chosen, probabilities.shape[-1]).sum(2).float().mean(1) * (probabilities.shape[-1] / chosen.shape[-1])
    for group in (cp, tp) if tp.sequence else (cp,):
        if group.size > 1:  # the shares of whole sequences; they have no gradient
            dist.all_reduce(share, group=group.group)
            share = share / group.size
    loss = (share * probabilities.mean(1)).sum(-1).mean()
    return loss / tp.size if tp.sequence else loss


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.loss = loss.detach()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.loss)


def with_gradient_of(x: Tensor, loss: Tensor) -> Tensor:
    """Return `x`; the backward pass adds the gradients of `loss`, so that no later stage has to receive it."""
    return _WithGradientOf.apply(x, loss)  # type: ignore[no-untyped-call, no-any-return]
