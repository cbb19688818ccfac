"""A LightningCLI, which saves its configuration, checkpoints and logs."""

import lightning
import torch
import writing
from lightning.pytorch.cli import LightningCLI


class Model(lightning.LightningModule):
    def __init__(self, width: int = 0):
        super().__init__()
        self.linear = writing.model(width)

    def on_fit_start(self):
        writing.start_tracker(self.trainer.default_root_dir)

    def training_step(self, batch, index):
        self.log("loss", loss := self.linear(batch[0]).pow(2).mean())
        return loss

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        writing.end_step()

    def validation_step(self, batch, index):
        self.log("validation", self.linear(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Data(lightning.LightningDataModule):
    def __init__(self, batch_size: int, num_workers: int = 0):
        super().__init__()
        self.batch_size, self.num_workers = batch_size, num_workers

    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.randn(4096, 4))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size, num_workers=self.num_workers)

    val_dataloader = train_dataloader


if __name__ == "__main__":
    LightningCLI(Model, Data)
