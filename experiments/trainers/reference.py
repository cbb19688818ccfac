"""Train as `examples/own_trainer.py` does, on one process and without oppa, over batches that are given."""

import functools
from collections.abc import Sequence

import torch
from torch import nn

from oppa.training.run.ledger import Line

DATA, INPUTS, CLASSES = 1000, 32, 10


class Reference:
    """Holds the data, the model and the optimizer of the example.

    Args:
        width: Hidden width of the model.
    """

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.data = torch.randn(DATA, INPUTS)
        self._labels = (self.data @ torch.randn(INPUTS, CLASSES) + torch.randn(DATA, CLASSES)).argmax(dim=1)
        self.model = nn.Sequential(nn.Linear(INPUTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, numbers: range, learning_rate: float) -> torch.Tensor:
        """Take an optimizer step on these samples; return the loss of each of them."""
        own = [place(number) for number in numbers]
        losses = nn.functional.cross_entropy(self.model(self.data[own]), self._labels[own], reduction="none")
        self.optimizer.zero_grad()
        losses.mean().backward()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return losses.detach()


def reference_losses(steps: Sequence[Line], width: int, *, of_first_rank: bool = False) -> list[float]:
    """Return the loss of each step over the samples and with the learning rate that a ledger states.

    Args:
        steps: Steps of the ledger, from the first on.
        width: Hidden width of the model.
        of_first_rank: Return the mean over the samples of rank 0, which are the first ones of a step, and not over all.
    """
    reference, losses = Reference(width), []
    for line in steps:
        each = reference.step(range(*line["samples"]), line["learning_rate"])
        shown = -(-len(each) // replicas(line)) if of_first_rank else len(each)
        losses.append(each[:shown].mean().item())
    return losses


def replicas(line: Line) -> int:
    """Return the degree dp of a step's configuration."""
    return int(str(line["configuration"]).split("_")[0].removeprefix("dp"))


def place(number: int, size: int = DATA) -> int:
    """Return the element of a data set of so many elements that a sample is, in the shuffled order of its epoch."""
    epoch, at = divmod(number, size)
    return int(_order(epoch, size)[at])


@functools.lru_cache(maxsize=2)
def _order(epoch: int, size: int) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
