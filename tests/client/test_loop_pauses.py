"""The user's own checkpoints, and callbacks that may upload them, are pauses of the run."""

import json
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from oppa_client import run_files
from transformers import TrainerCallback

from tests.client import loop_program
from tests.client.trainer_program import train, trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `srun` command", "ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec"),
]


class Watch:
    """Notes the label of the pause in which each event comes; None if it comes in none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.labels = folder, dict[str, set[str | None]]()

    def see(self, event: str) -> None:
        path = self.folder / run_files.PAUSED
        self.labels.setdefault(event, set()).add(json.loads(path.read_text())["label"] if path.exists() else None)


def test_callbacks_of_transformers_are_in_pauses(attempt_at):
    folder = attempt_at("run", total_samples=64)
    watch = Watch(folder)

    class Uploads(TrainerCallback):
        def on_log(self, *_, **__):
            watch.see("log")

        def on_evaluate(self, *_, **__):
            watch.see("evaluate")

        def on_save(self, *_, **__):
            watch.see("save")

        def on_epoch_end(self, *_, **__):
            watch.see("epoch")

        def on_step_end(self, *_, **__):
            watch.see("step")

    made = trainer(folder, save_strategy="steps", save_steps=2, eval_steps=2)
    made.add_callback(Uploads())
    train(made)
    assert watch.labels == {
        "log": {None, "evaluation", "leaving"},
        "evaluate": {"evaluation"},
        "save": {"on_save"},
        "epoch": {"on_epoch_end"},
        "step": {None, "leaving"},
    }


def test_checkpoints_of_lightning_are_saved_and_uploaded_in_pauses(attempt_at):
    folder = attempt_at("run", total_samples=40)
    watch = Watch(folder)

    class Saved(loop_program.Module):
        def on_save_checkpoint(self, checkpoint):
            watch.see("save")

    class Uploads(CSVLogger):
        def after_save_checkpoint(self, callback):
            watch.see("upload")

    options = {"callbacks": [ModelCheckpoint(folder / "own", every_n_train_steps=2, save_top_k=-1)], "enable_checkpointing": True}
    loop_program.train("lightning", folder, module=Saved, logger=Uploads(folder), **options)
    assert len(list((folder / "own").iterdir())) == 2
    assert watch.labels == {"save": {"saving", "leaving"}, "upload": {"saving"}}
