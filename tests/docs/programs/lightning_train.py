"""Train a model of five weights with Lightning, ten batches an epoch.

The environment gives EPOCHS, and CALLBACK: a module whose `Report` callback replaces the progress bar.
"""

import argparse
import importlib
import os

import lightning
import torch
from lightning.pytorch.callbacks import TQDMProgressBar


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.linear(batch[0]).pow(2).mean()

    def validation_step(self, batch, index):
        self.log("validation", self.linear(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accumulate", type=int, required=True)
args = parser.parse_args()
world, name = int(os.environ["WORLD_SIZE"]), os.environ.get("CALLBACK")
data = torch.utils.data.TensorDataset(torch.randn(10 * args.batch_size * world, 4))
loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=world,
    strategy="ddp",
    max_epochs=int(os.environ["EPOCHS"]),
    accumulate_grad_batches=args.accumulate,
    callbacks=[importlib.import_module(name).Report() if name else TQDMProgressBar(refresh_rate=1)],
    enable_progress_bar=not name,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Model(), loader, torch.utils.data.DataLoader(data, batch_size=args.batch_size))
if trainer.is_global_zero:
    print(f"\ntook {trainer.global_step} steps")
