"""Train as `examples/own_trainer.py` does, on one process and without oppa, over batches that are given."""

from collections.abc import Sequence

import torch
from torch import nn

from oppa.training.run.ledger import Line

DATA, INPUTS, CLASSES = 1000, 32, 10


def reference_losses(steps: Sequence[Line], width: int, *, of_first_rank: bool = False) -> list[float]:
    """Return the loss of each step over the samples and with the learning rate that a ledger states.

    Args:
        steps: Steps of the ledger, from the first on.
        width: Hidden width of the model.
        of_first_rank: Return the mean over the samples of rank 0, which are the first ones of a step, and not over all.
    """
    torch.manual_seed(0)
    data = torch.randn(DATA, INPUTS)
    labels = (data @ torch.randn(INPUTS, CLASSES) + torch.randn(DATA, CLASSES)).argmax(dim=1)
    model = nn.Sequential(nn.Linear(INPUTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for line in steps:
        own = [place(number) for number in range(*line["samples"])]
        each = nn.functional.cross_entropy(model(data[own]), labels[own], reduction="none")
        optimizer.zero_grad()
        each.mean().backward()
        for group in optimizer.param_groups:
            group["lr"] = line["learning_rate"]
        optimizer.step()
        shown = -(-len(own) // replicas(line)) if of_first_rank else len(own)
        losses.append(each[:shown].mean().item())
    return losses


def replicas(line: Line) -> int:
    """Return the degree dp of a step's configuration."""
    return int(str(line["configuration"]).split("_")[0].removeprefix("dp"))


def place(number: int, size: int = DATA) -> int:
    """Return the element of a data set of so many elements that a sample is, in the shuffled order of its epoch."""
    epoch, at = divmod(number, size)
    return int(torch.randperm(size, generator=torch.Generator().manual_seed(epoch))[at])
