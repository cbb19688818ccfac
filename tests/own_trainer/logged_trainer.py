"""Run the example of Transformers' `Trainer` with a log of its samples: `logged_trainer.py STEP PROGRAM ARGUMENTS`.

It saves checkpoints on the way. Each rank logs the elements of the data set that it trains on. Once in a run it waits in a step until it is
killed or may go on. That is the first step from STEP on that does not follow a checkpoint.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path

import oppa_client
import torch
from transformers.trainer_utils import SaveStrategy

SAVE_STEPS = 4
"""Steps of the reference batch from one checkpoint to the next."""
HELD, GO_ON = "held-{}", "go-on"
"""File of a rank that waits, with its step and the number of its process, and the file that ends the wait."""
WAIT_S = 60.0
"""Longest wait."""

hold_at, program, *words = sys.argv[1:]
sys.argv = [program, *words]
example = runpy.run_path(program)


class Numbered(torch.utils.data.Dataset):
    """Adds its own place to each element of a data set."""

    def __init__(self, elements):
        self._elements = elements

    def __len__(self):
        return len(self._elements)

    def __getitem__(self, index):
        return {**self._elements[index], "place": torch.tensor(index)}


class Logged(example["Measured"]):
    """Saves checkpoints on the way, and logs the places of the elements of each micro-batch."""

    def __init__(self, *, args, train_dataset, **options):
        args.save_strategy, args.save_steps = SaveStrategy.STEPS, SAVE_STEPS
        args.remove_unused_columns = False  # so that places reach the training step
        self._folder = Path(args.output_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        super().__init__(args=args, train_dataset=Numbered(train_dataset), **options)

    def training_step(self, model, inputs, *further):
        """Train on a micro-batch, and log it; an empty one has the inputs of another sample."""
        places = inputs.pop("place").tolist()
        if not self._empty:
            attempt, rank = int(Path(os.environ["OPPA_TRIAL"]).name), self.args.process_index
            with (self._folder / f"samples-{rank}.jsonl").open("a") as log:
                log.write(json.dumps([attempt, self.state.global_step, places]) + "\n")
        self._hold()
        return super().training_step(model, inputs, *further)

    def _hold(self):
        """Wait, once in a run, in a step that does not follow a checkpoint: steps are then lost if the rank is killed."""
        step, newest = self.state.global_step, self._saved_at[0] if self._saved_at else self._initial_global_step
        if step < int(hold_at) or step == newest:
            return
        try:
            with (self._folder / HELD.format(self.args.process_index)).open("x") as held:
                held.write(json.dumps([step, os.getpid()]))
        except FileExistsError:
            return
        end = time.monotonic() + WAIT_S
        while not (self._folder / GO_ON).exists() and time.monotonic() < end:
            time.sleep(0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    oppa_client.wait_for_devices()
    example["main"](Logged)
