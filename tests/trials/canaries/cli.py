"""A LightningCLI, which saves its configuration, checkpoints and logs."""

import lightning
import torch
import writing
from lightning.pytorch.cli import LightningCLI


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def on_fit_start(self):
        writing.start_tracker(self.trainer.default_root_dir)

    def training_step(self, batch, index):
        self.log("loss", loss := self.linear(batch[0]).pow(2).mean())
        return loss

    def validation_step(self, batch, index):
        self.log("validation", self.linear(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Data(lightning.LightningDataModule):
    def __init__(self, batch_size: int):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(128, 4)), batch_size=self.batch_size)

    val_dataloader = train_dataloader


if __name__ == "__main__":
    LightningCLI(Model, Data)
