"""Lightning's own limits of a training state its length under oppa, for its end and for the schedules of the user's module."""

import json

import pytest
import torch
from oppa_client import run_files

from tests.client import loop_program
from tests.client.by_hand import TOTAL
from tests.own_trainer.folders import reported

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `srun` command", "ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec"),
]


class Declines(loop_program.Module):
    """Has a learning rate that falls to 0 at the end that the trainer states."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        by_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.trainer.max_steps)
        return [optimizer], [{"scheduler": by_step, "interval": "step"}]


class DeclinesByEpoch(Declines):
    """Has the same schedule by epochs."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / self.trainer.max_epochs)]


@pytest.mark.parametrize(("stated", "steps"), [({"max_epochs": 2}, 13), ({"max_epochs": -1, "max_steps": 12}, 12)])
def test_a_schedule_to_the_last_step_or_epoch_follows_the_samples(attempt_at, stated, steps):
    rates = []
    for module in (Declines, DeclinesByEpoch):
        folder = attempt_at(module.__name__, total_samples=None)
        loop_program.train("lightning", folder, module=module, **stated)
        rates.append([line["learning_rate"] for line in reported(folder)])
    assert rates[0] == pytest.approx([1 - step / steps for step in range(steps)])
    assert rates[1] == [1.0] * 7 + [0.5] * (steps - 7)  # the first epoch of 50 samples ends with the seventh step of 8


def test_the_samples_of_a_run_state_the_length_in_place_of_the_arguments(attempt_at):
    folder = attempt_at("run", total_samples=TOTAL)
    loop_program.train("lightning", folder, module=Declines, max_epochs=9, max_steps=99)
    assert [line["learning_rate"] for line in reported(folder)] == pytest.approx([1 - step / 12 for step in range(12)])


@pytest.mark.parametrize(
    ("stated", "steps"),
    [({"max_epochs": 1, "max_steps": 30}, 7), ({"max_epochs": 3, "max_steps": 2}, 2), ({"max_epochs": None, "max_steps": 2}, 2)],
)
def test_the_shorter_of_epochs_and_steps_ends_a_training(attempt_at, stated, steps):
    folder = attempt_at("run", total_samples=None)
    loop_program.train("lightning", folder, **stated)
    assert len(reported(folder)) == steps


@pytest.mark.timeout(60)
def test_a_training_ends_with_its_samples_though_lightning_requires_more_steps(attempt_at):
    folder = attempt_at("run", total_samples=24)
    loop_program.train("lightning", folder, min_steps=40, min_epochs=4)
    assert len(reported(folder)) == 3
    left = json.loads((folder / run_files.LEFT).read_text())
    second = attempt_at("second", before=folder, total_samples=24)
    loop_program.train("lightning", second, min_steps=40)
    assert json.loads((second / run_files.LEFT).read_text())["checkpoint"] == left["checkpoint"]
