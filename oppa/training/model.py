"""A Llama-like transformer, cut into pipeline stages and tensor-parallel slices. Imports torch and the model's dimensions alone.

RMSNorm, rotary positions, grouped-query attention, gated feed-forward. Layers keep their global names (`blocks.{index}.…`)
whichever stage holds them. The embedding and the norms are whole on every tensor-parallel rank (small, and their gradients
agree); the output head is split over the vocabulary, because its logits are the largest activation of a small model.

Notation (b sequences, s tokens, h hidden, d width of a head):
    x              residual stream             (b, s, h)
    rotation       cosines, sines, per token   2 x (s, d/2)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oppa.problem.model import Model
from oppa.training.tensor_parallel import ColumnLinear, RowLinear, Slice, copy_to

Rotation = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """Divides by the root mean square over the hidden dimension, in float32."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Shape unchanged."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, eps=1e-5).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention over this rank's heads."""

    def __init__(self, model: Model, tp: Slice) -> None:
        super().__init__()
        self.tp, self.head_dim = tp, model.head_dim
        self.grouped = model.kv_heads != model.heads
        self.query = ColumnLinear(model.hidden, model.heads * model.head_dim, tp)
        self.key = ColumnLinear(model.hidden, model.kv_heads * model.head_dim, tp)
        self.value = ColumnLinear(model.hidden, model.kv_heads * model.head_dim, tp)
        self.output = RowLinear(model.heads * model.head_dim, model.hidden, tp)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Shape (b, s, h) unchanged."""
        x = copy_to(x, self.tp)
        query, key, value = (layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        query, key = rotate(query, rotation), rotate(key, rotation)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.grouped)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU over this rank's share of the inner width."""

    def __init__(self, model: Model, tp: Slice) -> None:
        super().__init__()
        self.tp = tp
        self.gate = ColumnLinear(model.hidden, model.ffn, tp)
        self.up = ColumnLinear(model.hidden, model.ffn, tp)
        self.down = RowLinear(model.ffn, model.hidden, tp)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (b, s, h) unchanged."""
        x = copy_to(x, self.tp)
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One layer; `recompute` forgets activations of the attention (`selective`) or of all (`full`) until the backward pass."""

    def __init__(self, model: Model, tp: Slice, recompute: str) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm, self.attention = RMSNorm(model.hidden), Attention(model, tp)
        self.feed_forward_norm, self.feed_forward = RMSNorm(model.hidden), FeedForward(model, tp)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Shape (b, s, h) unchanged."""
        if self.recompute == "full":
            return _later(self._layer, x, (cosines, sines))
        return self._layer(x, (cosines, sines))

    def _layer(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + (_later(self._attend, x, rotation) if self.recompute == "selective" else self._attend(x, rotation))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out

    def _attend(self, x: Tensor, rotation: Rotation) -> Tensor:
        out: Tensor = self.attention(self.attention_norm(x), rotation)
        return out


class Stage(nn.Module):
    """Consecutive blocks: the first stage embeds tokens, the last one ends in this rank's slice of the logits."""

    def __init__(self, model: Model, blocks: range, tp: Slice, *, recompute: str = "none", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.head_dim, self.dtype, self.tp = model.head_dim, dtype, tp
        self.embedding = nn.Embedding(model.vocab, model.hidden) if blocks.start == 0 else None
        self.blocks = nn.ModuleDict({str(index): Block(model, tp, recompute) for index in blocks})
        self.norm = RMSNorm(model.hidden) if blocks.stop == model.layers else None
        self.head = ColumnLinear(model.hidden, model.vocab, tp) if blocks.stop == model.layers else None

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (b, s) or the residual stream (b, s, h), to the residual stream or logits (b, s, rows of this rank)."""
        rotation = rotation_of(x.shape[1], self.head_dim, x.device)
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            if self.embedding is not None:
                x = self.embedding(x).to(self.dtype)
            for block in self.blocks.values():
                x = block(x, *rotation)
            if self.norm is not None and self.head is not None:
                x = self.head(copy_to(self.norm(x), self.tp))
            return x


def rotation_of(length: int, head_dim: int, device: torch.device) -> Rotation:
    """Cosines and sines of the rotary angles (Su et al. 2021, base 10,000), each (length, head_dim / 2)."""
    frequencies = 10_000.0 ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair of coordinates (i, i + d/2) by its token's angle; x is (b, heads, s, d)."""
    cosines, sines = rotation
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cosines - right * sines, left * sines + right * cosines), dim=-1).to(x.dtype)


def _later(function: object, *arguments: object) -> Tensor:
    # No dropout anywhere: the random state need not be kept.
    out: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return out
