"""Define a module of one's own in parts: an MLP-Mixer over bytes of text (Tolstikhin et al. 2021), which is no transformer.

Each part is an `nn.Module` that takes one tensor and returns one; oppa/training/model/user_module.py defines the parts.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Mixes each token with earlier tokens, then mixes channels."""

    def __init__(self, model):
        super().__init__()
        self.tokens, self.channels = nn.LayerNorm(model.hidden), nn.LayerNorm(model.hidden)
        self.over_tokens = nn.Linear(model.seq_len, model.seq_len)
        self.over_channels = nn.Sequential(nn.Linear(model.hidden, model.ffn), nn.GELU(), nn.Linear(model.ffn, model.hidden))
        self.register_buffer("past", torch.ones(model.seq_len, model.seq_len).tril())

    def forward(self, x):
        """Return a tensor of the input's shape, (sequences, tokens, hidden)."""
        mixed = F.linear(self.tokens(x).transpose(1, 2), self.over_tokens.weight * self.past, self.over_tokens.bias)
        x = x + mixed.transpose(1, 2)
        return x + self.over_channels(self.channels(x))


class Mixer:
    """The entry point, which oppa calls with the job's `[model]`; its methods return the parts."""

    def __init__(self, model):
        self.model = model

    def embed(self):
        """Return the part before the blocks."""
        return nn.Embedding(self.model.vocab, self.model.hidden)

    def block(self, index):
        """Return one of `layers` blocks."""
        return Block(self.model)

    def head(self):
        """Return the part after the blocks."""
        return nn.Sequential(nn.LayerNorm(self.model.hidden), nn.Linear(self.model.hidden, self.model.vocab))

    def loss(self, output, targets):
        """Return the mean loss of the given sequences."""
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())
