"""Train with a loop of your own around HF Accelerate; `oppa train` changes its batch while it trains.

The lines for oppa are those with `training`, and `wait_for_devices`, which lets ranks of another layout start while the present ones train.
Outside oppa the same loop trains with the batch of its options.
"""

import argparse

import oppa_client
import torch
from accelerate import Accelerator
from oppa_client.accelerate import OppaTraining
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from oppa.training import GradientStatistics


class Classifier(nn.Module):
    """A small network, whose hidden layer can be computed again in the backward pass."""

    def __init__(self, width, *, recompute):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
        self.recompute = recompute

    def forward(self, inputs):
        """Return the logits of each class."""
        return checkpoint(self.layers, inputs, use_reentrant=False) if self.recompute else self.layers(inputs)


def main():
    """Train by the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--epochs", type=float, default=6.4)
    parser.add_argument("--data", type=int, default=1000, help="samples of an epoch")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--save-every", type=int, default=5000, help="samples between two checkpoints")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    torch.manual_seed(0)
    data = torch.randn(options.data, 32)
    labels = (data @ torch.randn(32, 10) + torch.randn(options.data, 10)).argmax(dim=1)
    model = Classifier(options.width, recompute=options.recompute)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=options.learning_rate))
    training = OppaTraining(
        accelerator,
        model,
        optimizer,
        DataLoader(TensorDataset(data, labels), batch_size=options.micro_batch, shuffle=True),
        epochs=options.epochs,
        checkpoints=options.checkpoints,
        save_every=options.save_every,
        statistics=GradientStatistics(model),
    )
    for inputs, targets in training:
        with accelerator.accumulate(model):
            training.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    torch.set_num_threads(1)
    oppa_client.wait_for_devices()
    main()
