"""A transformer as `oppa.problem.model` describes it, cut into pipeline stages. Imports torch and the model's dimensions alone.

A GPT like Llama, an encoder like BERT, a ViT, or a mixture of experts: what they are made of is in `blocks`, `embeddings`, `experts`.

Layers keep their global names (`blocks.{index}.…`) whichever stage holds them. The embedding and the norms are whole on every
tensor-parallel rank (small, and their gradients agree); the output head is split over the vocabulary, because its logits are the
largest activation of a small model, and with it an embedding that is also the head.

Notation (b sequences, s tokens, h hidden):
    x              residual stream             (b, s, h)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oppa.problem.model import Model
from oppa.training.blocks import Block, norm_of, rotation_of
from oppa.training.embeddings import PatchEmbedding, TiedHead, TokenEmbedding
from oppa.training.tensor_parallel import ColumnLinear, Slice, copy_to

_WHOLE = Slice()


class Stage(nn.Module):
    """Consecutive parts: the first embeds the inputs, the last ends in this rank's slice of the logits; a stage without any does nothing.

    Without a `head` of its own the last stage multiplies with the embedding that it holds, too. Experts are spread over `ep`, and
    `micro_batches` make a step.
    """

    def __init__(
        self,
        model: Model,
        parts: range,
        tp: Slice,
        *,
        recompute: str = "none",
        dtype: torch.dtype = torch.float32,
        ep: Slice = _WHOLE,
        micro_batches: int = 1,
    ) -> None:
        super().__init__()
        self.head_dim, self.dtype, self.tp = model.head_dim, dtype, tp
        self.rotary, self.classifies = not model.learned_positions, model.patch > 0
        first, last = 0 in parts, model.layers + 1 in parts
        self.embedding = _embedding(model, tp) if first else None
        layers = [part - 1 for part in parts if 1 <= part <= model.layers]
        self.blocks = nn.ModuleDict({str(index): Block(model, tp, recompute, ep, micro_batches) for index in layers})
        self.norm = norm_of(model) if last else None
        self.head = _head(model, tp, first=first) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """What the embedding takes or the residual stream, to the residual stream or logits (b, s, rows of this rank).

        Logits of a ViT are those of its class token alone, (b, rows of this rank).
        """
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            if self.embedding is not None:
                x = self.embedding(x).to(self.dtype)
            rotation = rotation_of(x.shape[1], self.head_dim, x.device) if self.rotary else ()
            for block in self.blocks.values():
                x = block(x, *rotation)
            return x if self.norm is None else self._logits(self.norm(x))

    def _logits(self, x: Tensor) -> Tensor:
        x = copy_to(x[:, 0] if self.classifies else x, self.tp)
        if self.head is not None:
            out: Tensor = self.head(x)
            return out
        assert self.embedding is not None
        return F.linear(x, self.embedding.get_parameter("weight"))


def _embedding(model: Model, tp: Slice) -> nn.Module:
    return PatchEmbedding(model) if model.patch else TokenEmbedding(model, tp)


def _head(model: Model, tp: Slice, *, first: bool) -> nn.Module | None:
    """The output projection; none beside the embedding that it is tied to."""
    if not model.tied:
        return ColumnLinear(model.hidden, model.vocab, tp, bias=model.biases)
    return None if first else TiedHead(model.hidden, model.vocab, tp)
