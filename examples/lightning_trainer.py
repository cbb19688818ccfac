"""Train with Lightning; `oppa train` changes the batch while it trains.

`OppaTrainer` is Lightning's `Trainer` itself outside oppa. For oppa are only its import, the method that measures gradients, and a line for
early start. With this line, ranks of another layout wait while the present ones train.
"""

import argparse
import os

import lightning
import oppa_client
import torch
from oppa_client.lightning import OppaTrainer
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from oppa.training import GradientStatistics


class Classifier(lightning.LightningModule):
    """A small network, whose layers can be computed again in the backward pass."""

    def __init__(self, width, learning_rate, *, recompute):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
        self.learning_rate, self.recompute = learning_rate, recompute

    def training_step(self, batch, _):
        """Return the mean loss of a micro-batch."""
        inputs, targets = batch
        logits = checkpoint(self.layers, inputs, use_reentrant=False) if self.recompute else self.layers(inputs)
        return nn.functional.cross_entropy(logits, targets)

    def configure_optimizers(self):
        """Return the optimizer, whose learning rate belongs to the reference batch."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


class Measured(OppaTrainer):
    """Reports the gradient noise scale, which the policies `goodput` and `critical-batch` follow."""

    def gradient_statistics(self, model):
        """Return what measures the gradients of the wrapped model."""
        return GradientStatistics(model)


def main():
    """Train by the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--data", type=int, default=1000, help="samples of an epoch")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--save-every", type=int, default=5000, help="samples between two checkpoints")
    options = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randn(options.data, 32)
    labels = (data @ torch.randn(32, 10) + torch.randn(options.data, 10)).argmax(dim=1)
    trainer = Measured(
        accelerator="cpu" if not torch.cuda.is_available() else "auto",
        strategy="ddp" if "RANK" in os.environ else "auto",
        max_epochs=options.epochs,
        default_root_dir=options.checkpoints,
        save_every=options.save_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    module = Classifier(options.width, options.learning_rate, recompute=options.recompute)
    trainer.fit(module, DataLoader(TensorDataset(data, labels), batch_size=options.micro_batch, shuffle=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    oppa_client.wait_for_devices()
    main()
