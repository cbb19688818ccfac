"""Build the pipeline stages of a transformer as `oppa.problem.model` describes it. It imports only torch and the model's dimensions.

The transformer is a GPT like Llama, an encoder like BERT, a ViT, or a mixture of experts. Its components are in `blocks`, `embeddings`
and `moe`.

Layers keep their global names (`blocks.{index}.…`) in every stage. Each tensor-parallel rank holds the whole embedding and norms, because
they are small and their gradients agree. The output head is split over the vocabulary, because its logits are the largest activation of a
small model. A tied embedding is split with it.

Under context parallelism, each rank gets whole sequences as the model's inputs, and computes on its part of them.

Notation (b sequences, s tokens of this rank, h hidden):
    x              residual stream             (b, s, h)
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oppa.problem.model import Model
from oppa.training.model.blocks import Block, norm_of, rotation_of
from oppa.training.model.embeddings import PatchEmbedding, TiedHead, TokenEmbedding
from oppa.training.model.tensor_parallel import WHOLE, ColumnLinear, Slice, enter, own_part

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Type in which a stage computes, by the precision of a job."""


class ModelStage(nn.Module):
    """Runs consecutive parts. The first part embeds the inputs, and the last one computes this rank's slice of the logits.

    A last stage without a `head` multiplies with the tied embedding, which it then holds. A stage without parts returns its input.

    Args:
        model: Dimensions of the model.
        parts: Numbers of the parts: 0 is the embedding, `layers + 1` the norm and the head.
        tp: This rank's slice in tensor parallelism.
        recompute: Returns the activations that a layer recomputes (`Block`); layers are numbered from 0 in each stage.
        dtype: Type in which the stage computes.
        ep: This rank's slice of the experts.
        micro_batches: Micro-batches of a step (`Block`).
        cp: This rank's part of the sequences (`context_parallel`).
    """

    def __init__(
        self,
        model: Model,
        parts: range,
        tp: Slice,
        *,
        recompute: Callable[[int], str] = lambda _: "none",
        dtype: torch.dtype = torch.float32,
        ep: Slice = WHOLE,
        micro_batches: int = 1,
        cp: Slice = WHOLE,
    ) -> None:
        super().__init__()
        self.head_dim, self.dtype, self.tp, self.cp = model.head_dim, dtype, tp, cp
        self.rotary, self.theta, self.classifies = not model.learned_positions, model.rope_theta, model.patch > 0
        first, last = 0 in parts, model.layers + 1 in parts
        self.embedding = (PatchEmbedding(model) if model.patch else TokenEmbedding(model, tp, cp)) if first else None
        layers = [part - 1 for part in parts if 1 <= part <= model.layers]
        self.blocks = nn.ModuleDict(
            {str(index): Block(model, tp, recompute(layer), ep, micro_batches, cp=cp) for layer, index in enumerate(layers)}
        )
        self.norm = norm_of(model, tp) if last else None
        self.head = _head(model, tp, first=first) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the parts to the model's inputs or the residual stream.

        Returns:
            The residual stream, or logits of shape (b, s, rows of this rank); a ViT has only those of its class token, of shape
            (b, rows of this rank).
        """
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            if self.embedding is not None:
                x = own_part(self.embedding(x).to(self.dtype), self.tp)
            parts = self.cp.size * (self.tp.size if self.tp.sequence else 1)
            rotation = rotation_of(x.shape[1] * parts, self.head_dim, x.device, self.theta) if self.rotary else ()
            for block in self.blocks.values():
                x = block(x, *rotation)
            return x if self.norm is None else self._logits(self.norm(x))

    def _logits(self, x: Tensor) -> Tensor:
        x = enter(x, self.tp)[:, 0] if self.classifies and self.tp.sequence else enter(x[:, 0] if self.classifies else x, self.tp)
        if self.head is not None:
            out: Tensor = self.head(x)
            return out
        assert self.embedding is not None
        return F.linear(x, self.embedding.get_parameter("weight"))


def _head(model: Model, tp: Slice, *, first: bool) -> nn.Module | None:
    """Return the output projection; None if the stage holds the embedding to which it is tied."""
    if not model.tied:
        return ColumnLinear(model.hidden, model.vocab, tp, bias=model.biases)
    return None if first else TiedHead(model.hidden, model.vocab, tp)
