"""A tiny model, its optimizer and its data, as the program under DeepSpeed and the plain loop of its test train them."""

import torch
from torch import nn

SIZE, WIDTH, SEED = 50, 24, 3
"""Samples of the data set, width of the model, and the seed of everything."""
RATE, DECAY = 0.01, 0.1


class Block(nn.Module):
    """Applies two linear layers, which AutoTP cuts by columns and by rows, around a residual connection."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH, bias=False))

    def forward(self, inputs):
        return inputs + self.inner(inputs)


def layers():
    """Return the layers of the model, initialised by the seed."""
    torch.manual_seed(SEED)
    return [nn.Linear(4, WIDTH), Block(), Block(), nn.Linear(WIDTH, 3)]


class Samples(torch.utils.data.Dataset):
    """Pairs of inputs and labels; the first input is the sample's number."""

    def __init__(self):
        generator = torch.Generator().manual_seed(SEED)
        self.inputs = torch.randn(SIZE, 4, generator=generator)
        self.inputs[:, 0] = torch.arange(SIZE) / SIZE
        self.labels = torch.randint(3, (SIZE,), generator=generator)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index]


def groups_of(parameters):
    """Return two groups of parameters, of which one decays."""
    named = list(parameters)
    return [
        {"params": [each for each in named if each.dim() > 1], "weight_decay": DECAY},
        {"params": [each for each in named if each.dim() < 2], "weight_decay": 0.0},
    ]
