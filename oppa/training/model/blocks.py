"""Define one transformer layer in tensor-parallel slices: attention and a feed-forward network, each after a norm.

All model families are pre-norm. The original BERT is post-norm: it has the same weights and operations, but is harder to train.

Notation (b sequences, s tokens, h hidden, d width of a head):
    x              residual stream; this rank's part of it under context parallelism      (b, s / cp, h)
    rotation       cosines and sines per token; None for learned positions                2 x (s, d/2)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oppa.problem.model import Model
from oppa.training.model.context_parallel import sequence_parts, whole_sequences
from oppa.training.model.moe import Mixture
from oppa.training.model.tensor_parallel import WHOLE, ColumnLinear, RowLinear, Slice, enter, shared

Rotation = tuple[Tensor, Tensor] | None


class RMSNorm(nn.Module):
    """Divides by the root mean square over the hidden dimension, in float32."""

    def __init__(self, hidden: int, eps: float, tp: Slice) -> None:
        super().__init__()
        self.eps, self.tp, self.weight = eps, tp, nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x`; its shape stays."""
        return F.rms_norm(x.float(), self.weight.shape, shared(self.weight, self.tp).float(), eps=self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """Subtracts the mean over the hidden dimension and divides by the standard deviation, in float32."""

    def __init__(self, hidden: int, eps: float, tp: Slice) -> None:
        super().__init__()
        self.eps, self.tp = eps, tp
        self.weight, self.bias = nn.Parameter(torch.empty(hidden)), nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x`; its shape stays."""
        weight, bias = shared(self.weight, self.tp), shared(self.bias, self.tp)
        return F.layer_norm(x.float(), self.weight.shape, weight.float(), bias.float(), eps=self.eps).to(x.dtype)


def norm_of(model: Model, tp: Slice) -> nn.Module:
    """Return a new norm of the kind that the model uses throughout."""
    return (LayerNorm if model.norm == "layer" else RMSNorm)(model.hidden, model.norm_eps, tp)


class Attention(nn.Module):
    """Computes self-attention over this rank's heads."""

    def __init__(self, model: Model, tp: Slice, cp: Slice = WHOLE) -> None:
        super().__init__()
        self.tp, self.cp, self.head_dim, self.causal = tp, cp, model.head_dim, model.causal
        self.grouped = model.kv_heads != model.heads
        biased = model.biases or model.qkv_bias
        self.query = ColumnLinear(model.hidden, model.heads * model.head_dim, tp, bias=biased)
        self.key = ColumnLinear(model.hidden, model.kv_heads * model.head_dim, tp, bias=biased)
        self.value = ColumnLinear(model.hidden, model.kv_heads * model.head_dim, tp, bias=biased)
        self.output = RowLinear(model.heads * model.head_dim, model.hidden, tp, bias=model.biases)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Apply attention over whole sequences; the shape stays, which is (b, s / cp, h)."""
        x = enter(x, self.tp)
        parts = [layer(x).unflatten(-1, (-1, self.head_dim)) for layer in (self.query, self.key, self.value)]
        query, key, value = (whole.transpose(1, 2) for whole in whole_sequences(parts, self.cp))
        query, key = rotate(query, rotation), rotate(key, rotation)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, enable_gqa=self.grouped)
        out: Tensor = self.output(sequence_parts(mixed.transpose(1, 2), self.cp).flatten(2))
        return out


class FeedForward(nn.Module):
    """Computes SwiGLU, or GELU without a gate, over this rank's share of the inner width."""

    def __init__(self, model: Model, tp: Slice) -> None:
        super().__init__()
        self.tp, self.approximate = tp, model.gelu_approximation
        self.gate = ColumnLinear(model.hidden, model.ffn, tp, bias=model.biases) if model.gated else None
        self.up = ColumnLinear(model.hidden, model.ffn, tp, bias=model.biases)
        self.down = RowLinear(model.ffn, model.hidden, tp, bias=model.biases)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network; the shape stays."""
        out: Tensor = self.down(self._inner(enter(x, self.tp)))
        return out

    def _inner(self, x: Tensor) -> Tensor:
        up: Tensor = self.up(x)
        return F.gelu(up, approximate=self.approximate) if self.gate is None else F.silu(self.gate(x)) * up


class Block(nn.Module):
    """Computes one transformer layer.

    Args:
        model: Model that the layer belongs to.
        tp: This rank's slice of the layer.
        recompute: Activations to recompute in the backward pass: `none`, `selective` (those of attention) or `full` (all).
        ep: This rank's slice of the experts, if the model is a mixture.
        micro_batches: Micro-batches of a step, by which a mixture's balance loss is divided.
        cp: This rank's part of the sequences.
    """

    def __init__(self, model: Model, tp: Slice, recompute: str, ep: Slice, micro_batches: int, *, cp: Slice = WHOLE) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm, self.attention = norm_of(model, tp), Attention(model, tp, cp)
        self.feed_forward_norm = norm_of(model, tp)
        self.feed_forward = Mixture(model, tp, ep, micro_batches, cp=cp) if model.experts > 1 else FeedForward(model, tp)

    def forward(self, x: Tensor, *rotation: Tensor) -> Tensor:
        """Apply the layer; the shape of `x` stays. `rotation` has cosines and sines for rotary positions, else it is empty."""
        turned = (rotation[0], rotation[1]) if rotation else None
        return later(self._layer, x, turned) if self.recompute == "full" else self._layer(x, turned)

    def _layer(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + (later(self._attend, x, rotation) if self.recompute == "selective" else self._attend(x, rotation))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out

    def _attend(self, x: Tensor, rotation: Rotation) -> Tensor:
        out: Tensor = self.attention(self.attention_norm(x), rotation)
        return out


def rotation_of(length: int, head_dim: int, device: torch.device, theta: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary angles (Su et al. 2021) with base `theta`, each of shape (length, head_dim / 2)."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair of coordinates (i, i + d/2) by its token's angle; `x` has shape (b, heads, s, d)."""
    if rotation is None:
        return x
    cosines, sines = rotation
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cosines - right * sines, left * sines + right * cosines), dim=-1).to(x.dtype)


def later(function: object, *arguments: object) -> Tensor:
    """Call `function` without keeping its activations; the backward pass recomputes them."""
    # There is no dropout, so the random state need not be kept.
    out: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return out
