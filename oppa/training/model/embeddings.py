"""Embed a batch in the first stage: tokens or image patches become vectors, plus learned positions if the model has them.

Notation (b sequences, s tokens, h hidden, p side of a patch):
    tokens    ids below the vocabulary                     (b, s)
    images    square, three channels                       (b, 3, p sqrt(s - 1), p sqrt(s - 1))
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oppa.problem.model import Model
from oppa.training.model.tensor_parallel import WHOLE, ColumnLinear, Slice, reduce_from
from oppa.training.model.tensor_slices import Piece


class TokenEmbedding(nn.Embedding):
    """Embeds tokens, and adds learned positions and token types if the model has them.

    Every tensor-parallel rank holds all rows. A tied embedding is also the output head, so it is split over the vocabulary.
    """

    def __init__(self, model: Model, tp: Slice, cp: Slice = WHOLE) -> None:
        self.part = tp.of(model.vocab) if model.tied else range(model.vocab)
        super().__init__(len(self.part), model.hidden)
        self.vocab, self.tp, self.cp = model.vocab, tp, cp
        self.positions = _rows(model.learned_positions, model.hidden)
        self.token_types = _rows(model.token_types, model.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed this rank's part of whole sequences of tokens, shape (b, s), as vectors of shape (b, s / cp, h)."""
        length = tokens.shape[1]
        mine = self.cp.of(length)
        tokens = tokens[:, mine.start : mine.stop]
        x = super().forward(tokens) if len(self.part) == self.vocab else self._split(tokens)
        if self.token_types is not None:
            # The sequence is cut into as many segments of equal length as there are token types.
            x = x + self.token_types[torch.arange(mine.start, mine.stop, device=tokens.device) * len(self.token_types) // length]
        return x if self.positions is None else x + self.positions[mine.start : mine.stop]

    def pieces(self, name: str) -> list[Piece]:
        """Return the pieces of a parameter: this rank's rows of the token vectors, or a whole tensor."""
        if not name.endswith(".weight"):
            return [Piece.of(name, self.get_parameter(name.rpartition(".")[2]).shape)]
        return [Piece.of(name, (self.vocab, self.embedding_dim), 0, self.part)]

    def _split(self, tokens: Tensor) -> Tensor:
        local = tokens - self.part.start
        here = (local >= 0) & (local < len(self.part))
        rows = super().forward(local.clamp(0, len(self.part) - 1))
        return reduce_from(rows * here.unsqueeze(-1), self.tp)


class TiedHead(ColumnLinear):
    """Implements the tied output head of a last stage without the embedding: a copy of it. The gradients of both are summed."""

    def pieces(self, name: str) -> list[Piece]:
        """Return this rank's rows of the embedding, under its name."""
        return super().pieces(name.replace("head", "embedding"))


class PatchEmbedding(nn.Module):
    """Embeds the patches of an image after a class token for the whole image (ViT, Dosovitskiy et al. 2021, eq. 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch = model.patch
        self.projection = nn.Linear(3 * model.patch**2, model.hidden)
        self.class_token = nn.Parameter(torch.empty(1, model.hidden))
        self.positions = _rows(model.learned_positions, model.hidden)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images of shape (b, 3, side, side) as vectors of shape (b, s, h)."""
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        x = self.projection(patches)
        x = torch.cat((self.class_token.to(x.dtype).expand(len(x), 1, -1), x), dim=1)
        return x if self.positions is None else x + self.positions[: x.shape[1]]


def _rows(count: int, hidden: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(count, hidden)) if count else None
