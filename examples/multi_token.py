"""Define multi-token prediction as parts of a pipeline (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Each of the last blocks, a head, predicts one token further than the block before it. A head needs the representation that the block before
it made, and the embedding of a later token. Stages therefore pass one tensor that contains both, and each head appends its own
representation. A head is thus a block like others, which any stage may hold (`stage_layout`). No part of the first or the last stage exists
twice.

Notation (b sequences, s tokens, h hidden, k = 1 .. HEADS):
    between blocks    x, embedded             (b, s, 2 h)
    after head k      x, embedded, y_1 .. y_k (b, s, (2 + k) h)
"""

import torch
from torch import nn
from torch.nn import functional as F

HEADS = 2
WEIGHT = 0.3
"""Weight of the heads' mean loss."""


class Layer(nn.TransformerEncoderLayer):
    """One layer of a transformer with a causal mask: each token attends to itself and to earlier tokens."""

    def __init__(self, model):
        super().__init__(model.hidden, model.heads, model.ffn, dropout=0.0, batch_first=True, norm_first=True)
        self.register_buffer("later", torch.ones(model.seq_len, model.seq_len, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x):
        """Return a tensor of the input's shape, (b, s, h)."""
        return super().forward(x, src_mask=self.later, is_causal=True)


class Embedding(nn.Embedding):
    """Two copies of the tokens' embedding: one goes through the layers, the other one unchanged to the heads."""

    def forward(self, tokens):
        """Map tokens of shape (b, s) to vectors of shape (b, s, 2 h)."""
        x = super().forward(tokens)
        return torch.cat((x, x), dim=-1)


class Block(nn.Module):
    """A layer that transforms the representation, and passes the embeddings on."""

    def __init__(self, model):
        super().__init__()
        self.layer = Layer(model)

    def forward(self, passing):
        """Return a tensor of the input's shape, (b, s, 2 h)."""
        x, embedded = passing.chunk(2, dim=-1)
        return torch.cat((self.layer(x), embedded), dim=-1)


class Head(nn.Module):
    """Head k: a projection and a layer, on the representation before it and the embedding k tokens further on."""

    def __init__(self, model, k):
        super().__init__()
        self.k, self.hidden = k, model.hidden
        self.norms = nn.ModuleList([nn.LayerNorm(model.hidden), nn.LayerNorm(model.hidden)])
        self.projection, self.layer = nn.Linear(2 * model.hidden, model.hidden, bias=False), Layer(model)

    def forward(self, passing):
        """Append the head's representation: map shape (b, s, (1 + k) h) to (b, s, (2 + k) h)."""
        x, embedded, *others = passing.split(self.hidden, dim=-1)
        before, further = (others or [x])[-1], F.pad(embedded[:, self.k :], (0, 0, 0, self.k))
        both = [norm(each) for norm, each in zip(self.norms, (before, further), strict=True)]
        return torch.cat((passing, self.layer(self.projection(torch.cat(both, dim=-1)))), dim=-1)


class Output(nn.Module):
    """One projection to logits for the model and all its heads."""

    def __init__(self, model):
        super().__init__()
        self.hidden, self.norm = model.hidden, nn.LayerNorm(model.hidden)
        self.projection = nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, passing):
        """Map shape (b, s, (2 + HEADS) h) to logits of shape (b, s, 1 + HEADS, vocabulary)."""
        x, _, *others = passing.split(self.hidden, dim=-1)
        return self.projection(self.norm(torch.stack((x, *others), dim=2)))


class MultiToken:
    """The entry point. The last `HEADS` of the job's `layers` are heads."""

    def __init__(self, model):
        self.model = model

    def embed(self):
        """Return the part before the blocks."""
        return Embedding(self.model.vocab, self.model.hidden)

    def block(self, index):
        """Return a layer or a head."""
        k = index + 1 - (self.model.layers - HEADS)
        return Head(self.model, k) if k > 0 else Block(self.model)

    def head(self):
        """Return the part after the blocks."""
        return Output(self.model)

    def loss(self, output, targets):
        """Return the loss of the next token plus WEIGHT times the heads' mean loss; the targets of head k are k tokens further on."""
        losses = [F.cross_entropy(output[:, : targets.shape[1] - k, k].flatten(0, 1), targets[:, k:].flatten()) for k in range(1 + HEADS)]
        return losses[0] + WEIGHT * sum(losses[1:]) / HEADS
