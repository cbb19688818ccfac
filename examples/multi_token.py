"""Define multi-token prediction as parts of a pipeline (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Each of the last blocks, a head, predicts one token further than the block before it. A head needs the representation that the block before
it made, and the embedding of a later token. Stages therefore pass one tensor that contains both, and each head appends its own
representation. A head is thus a block like others, which any stage may hold (`stage_layout`). No part of the first or the last stage exists
twice.

`Divided` makes each head's logits and loss a part of their own. It may lie on another stage than the head (FlexTrain, figures 4 and 5).

Notation (b sequences, s tokens, h hidden, k = 1 .. HEADS):
    between blocks    x, embedded             (b, s, 2 h)
    after head k      x, embedded, y_1 .. y_k (b, s, (2 + k) h)
    in `Divided`      x, embedded, y, ids, loss: the last head's representation, tokens, losses so far    (b, s, 3 h + 3)
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


DIGIT = 128
"""Tokens travel as two digits of this base: bf16 holds integers up to 256 exactly."""


class WideEmbedding(nn.Embedding):
    """The parts of `Divided` all pass one tensor, which begins with the embedding, the tokens and no loss."""

    def forward(self, tokens):
        """Map tokens of shape (b, s) to (b, s, 3 h + 3)."""
        x = super().forward(tokens)
        ids = torch.stack((tokens // DIGIT, tokens % DIGIT), dim=-1).to(x.dtype)
        return torch.cat((x, x, x, ids, torch.zeros_like(ids[..., :1])), dim=-1)


class Part(nn.Module):
    """A part between the ends. Each replaces one piece of the tensor that all parts pass on."""

    def __init__(self, model):
        super().__init__()
        self.widths = [model.hidden] * 3 + [2, 1]

    def pieces(self, passing):
        """Return x, embedded, y, ids and the loss of a tensor of shape (b, s, 3 h + 3)."""
        return list(passing.split(self.widths, dim=-1))


class DividedBlock(Part):
    """A layer, which also sets the representation that the first head begins with."""

    def __init__(self, model):
        super().__init__(model)
        self.layer = Layer(model)

    def forward(self, passing):
        """Return a tensor of the input's shape."""
        x, embedded, _, ids, loss = self.pieces(passing)
        x = self.layer(x)
        return torch.cat((x, embedded, x, ids, loss), dim=-1)


class DividedHead(Part):
    """Head k without its logits."""

    def __init__(self, model, k):
        super().__init__(model)
        self.k = k
        self.norms = nn.ModuleList([nn.LayerNorm(model.hidden), nn.LayerNorm(model.hidden)])
        self.projection, self.layer = nn.Linear(2 * model.hidden, model.hidden, bias=False), Layer(model)

    def forward(self, passing):
        """Return a tensor of the input's shape."""
        x, embedded, y, ids, loss = self.pieces(passing)
        further = F.pad(embedded[:, self.k :], (0, 0, 0, self.k))
        both = [norm(each) for norm, each in zip(self.norms, (y, further), strict=True)]
        return torch.cat((x, embedded, self.layer(self.projection(torch.cat(both, dim=-1))), ids, loss), dim=-1)


class Loss(Part):
    """Logits and loss of head k, with a projection of its own. The targets are tokens of the input, k + 1 further on."""

    def __init__(self, model, k):
        super().__init__(model)
        self.k, self.norm = k, nn.LayerNorm(model.hidden)
        self.projection = nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, passing):
        """Return a tensor of the input's shape, whose loss is larger by this head's."""
        x, embedded, y, ids, loss = self.pieces(passing)
        tokens, there = (ids[..., 0] * DIGIT + ids[..., 1]).round().long(), y.shape[1] - self.k - 1
        logits = self.projection(self.norm(y[:, :there])).float()
        each = F.cross_entropy(logits.flatten(0, 1), tokens[:, self.k + 1 :].flatten(), reduction="none").view(-1, there, 1)
        mean = F.pad(
            each * (y.shape[1] / there), (0, 0, 0, y.shape[1] - there)
        )  # so that the mean over s is that over the positions there are
        return torch.cat((x, embedded, y, ids, loss + (WEIGHT / HEADS * mean).to(loss.dtype)), dim=-1)


class DividedOutput(Part):
    """The model's own logits, next to the losses of the heads."""

    def __init__(self, model):
        super().__init__(model)
        self.norm, self.projection = nn.LayerNorm(model.hidden), nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, passing):
        """Map shape (b, s, 3 h + 3) to (b, s, vocabulary + 1)."""
        x, _, _, _, loss = self.pieces(passing)
        return torch.cat((self.projection(self.norm(x)), loss), dim=-1)


class Divided:
    """The entry point. The job's `layers` are layers, then a head and its loss, `HEADS` times."""

    def __init__(self, model):
        self.model = model

    def embed(self):
        """Return the part before the blocks."""
        return WideEmbedding(self.model.vocab, self.model.hidden)

    def block(self, index):
        """Return a layer, a head or a loss."""
        k, is_loss = divmod(index - (self.model.layers - 2 * HEADS), 2)
        if k < 0:
            return DividedBlock(self.model)
        return Loss(self.model, k + 1) if is_loss else DividedHead(self.model, k + 1)

    def head(self):
        """Return the part after the blocks."""
        return DividedOutput(self.model)

    def loss(self, output, targets):
        """Return the loss of the next token plus the heads' losses."""
        return F.cross_entropy(output[..., :-1].flatten(0, 1), targets.flatten()) + output[..., -1].mean()
