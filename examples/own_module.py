"""A module of one's own, in parts: an MLP-Mixer over bytes of text (Tolstikhin et al. 2021), which is no transformer.

Each part is any `nn.Module` from one tensor to one; oppa/training/parts.py says what they may be.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Mixes tokens with those before them, then channels."""

    def __init__(self, model):
        super().__init__()
        self.tokens, self.channels = nn.LayerNorm(model.hidden), nn.LayerNorm(model.hidden)
        self.over_tokens = nn.Linear(model.seq_len, model.seq_len)
        self.over_channels = nn.Sequential(nn.Linear(model.hidden, model.ffn), nn.GELU(), nn.Linear(model.ffn, model.hidden))
        self.register_buffer("past", torch.ones(model.seq_len, model.seq_len).tril())

    def forward(self, x):
        """Shape (sequences, tokens, hidden) unchanged."""
        mixed = F.linear(self.tokens(x).transpose(1, 2), self.over_tokens.weight * self.past, self.over_tokens.bias)
        x = x + mixed.transpose(1, 2)
        return x + self.over_channels(self.channels(x))


class Mixer:
    """The entry point: called with the job's `[model]`, it says its parts."""

    def __init__(self, model):
        self.model = model

    def embed(self):
        """What stands before the blocks."""
        return nn.Embedding(self.model.vocab, self.model.hidden)

    def block(self, index):
        """One of `layers` blocks."""
        return Block(self.model)

    def head(self):
        """What stands behind them."""
        return nn.Sequential(nn.LayerNorm(self.model.hidden), nn.Linear(self.model.hidden, self.model.vocab))

    def loss(self, output, targets):
        """Mean over the sequences given."""
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())
