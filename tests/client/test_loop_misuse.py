"""A wrong loop around Accelerate, or a wrong module of Lightning, is refused before it trains on other batches than oppa planned."""

import json

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from oppa_client import ContractError
from oppa_client.accelerate.support import require_supported
from torch import nn
from torch.utils.data import DataLoader

from tests.client import loop_program
from tests.client.by_hand import TOTAL, batches, order
from tests.own_trainer.folders import reported

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `srun` command", "ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec"),
]


def loop(folder, body):
    """Train with a body of the loop."""
    accelerator = loop_program.Accelerator(cpu=True)
    made = loop_program.model()
    made, optimizer = accelerator.prepare(made, torch.optim.SGD(made.parameters(), lr=0.1))
    loader = DataLoader(loop_program.data(), batch_size=2, shuffle=True)
    training = loop_program.OppaTraining(accelerator, made, optimizer, loader, checkpoints=folder / "output")
    for _, inputs, labels in training:
        body(accelerator, training, made, lambda: nn.functional.cross_entropy(made(inputs), labels))  # noqa: B023 - called at once


def skips(accelerator, training, model, loss):
    with accelerator.accumulate(model):
        pass


def does_not_accumulate(accelerator, training, model, loss):
    training.backward(loss())


def counts_twice(accelerator, training, model, loss):
    with accelerator.accumulate(model):
        training.backward(loss())
        if accelerator.sync_gradients:
            training.backward(loss())


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (skips, "`training.backward` was not called"),
        (does_not_accumulate, "outside of `with accelerator.accumulate"),
        (counts_twice, "without a micro-batch"),
    ],
)
def test_a_loop_that_leaves_out_or_repeats_a_backward_pass_is_refused(attempt_at, body, named):
    folder = attempt_at("run")
    with pytest.raises(ContractError, match=named):
        loop(folder, body)
    assert not (folder / "measurements.jsonl").exists()


def test_a_loop_that_stops_by_itself_saves_and_leaves(attempt_at):
    folder = attempt_at("run")

    def stops(accelerator, training, model, loss):
        with accelerator.accumulate(model):
            training.backward(loss())
        if training.samples >= 24:
            training.stop()

    loop(folder, stops)
    left = json.loads((folder / "left.json").read_text())
    assert (left["reason"], left["samples"]) == ("stop", 24)


class WithoutLoss(loop_program.Module):
    """Skips each batch."""

    def training_step(self, batch, _):
        super().training_step(batch, _)


class Manual(loop_program.Module):
    """Steps by itself."""

    def __init__(self, *rest):
        super().__init__(*rest)
        self.automatic_optimization = False


class Metric(loop_program.Module):
    """Has a schedule that is no function of the progress."""

    def configure_optimizers(self):
        (optimizer,), _ = super().configure_optimizers()
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


@pytest.mark.filterwarnings("ignore:`training_step` returned")
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"module": WithoutLoss}, "returned no loss"),
        ({"module": Manual, "gradient_clip_val": None}, "automatic_optimization = False"),
        ({"module": Metric}, "the schedule `ExponentialLR` is no function of the progress"),
        ({"callbacks": [GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
        ({"callbacks": [StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging"),
        ({"val_check_interval": 5}, "val_check_interval = 5"),
        ({"limit_train_batches": 3}, "limit_train_batches = 3"),
    ],
)
def test_what_lightning_cannot_do_under_a_plan_is_refused(attempt_at, changed, named):
    folder = attempt_at("run")
    with pytest.raises(ContractError, match=named):
        loop_program.train("lightning", folder, **changed)
    assert not (folder / "measurements.jsonl").exists()


class Data(lightning.LightningDataModule):
    """Makes its data only once it is set up."""

    def setup(self, stage):
        self.samples = loop_program.data()

    def train_dataloader(self):
        return DataLoader(self.samples, batch_size=2, shuffle=True)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_data_module_and_a_schedule_of_the_whole_training_follow_the_plan(attempt_at):
    folder, lengths = attempt_at("run"), []

    class Asks(loop_program.Module):
        def configure_optimizers(self):
            lengths.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    recorder = loop_program.StepRecorder({2: (12, 2)}, None, 2)
    silent = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    lightning.seed_everything(loop_program.SEED, verbose=False)
    trainer = loop_program.OppaTrainer(accelerator="cpu", devices=1, max_epochs=2, default_root_dir=folder / "output", **silent)
    trainer.fit(Asks(recorder, 0.0), datamodule=Data())
    sizes = [line["samples"] for line in reported(folder)]
    assert lengths == [12] and sum(sizes) == TOTAL and 12 in sizes
    assert list(recorder.steps.values()) == [order(numbers) for numbers in batches(sizes)]


def test_ranks_that_train_apart_are_refused(monkeypatch):
    accelerator = loop_program.Accelerator(cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContractError, match=r"1 ranks of Accelerate .*, where the launcher started 2"):
        require_supported(accelerator)
