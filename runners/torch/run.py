"""oppa's own training core as a run, `oppa train`: one process per rank, in the folder of an attempt (oppa/training/run_folder.py)."""

import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `rank`
import rank as ranks

sys.path.pop(0)  # its folders have the names of frameworks

from oppa.control import line
from oppa.training.attempt import Attempt
from oppa.training.run_folder import RunSpec
from oppa.trials.wire import TrialSpec


def run(folder, rank, world):
    """Run this rank of the attempt in `folder`; its exit code."""
    return ranks.guarded(train, folder, rank, world)


def train(trial, rank, world):
    """Train from the newest checkpoint on."""
    folder, spec = trial.folder.parents[1], TrialSpec.read(trial.folder)
    with line_of(folder, spec, rank) as adviser:
        attempt = Attempt(
            folder,
            stop_requested=trial.stop_requested,
            on_step=lambda step: trial.measured(step.step_time_s, loss=step.loss if step.updated else None),
            adviser=adviser,
        )
        attempt.make(spec, rank=rank, world=world, rendezvous=os.environ.get("OPPA_RENDEZVOUS", "env://"))
    if rank == 0:
        trial.end("completed")


def line_of(folder, spec, rank):
    """Rank 0's line to the control service, where the run has one."""
    if rank != 0:
        return contextlib.nullcontext()
    return line.client_of(folder, spec.configuration, RunSpec.read(folder).problem) or contextlib.nullcontext()


if __name__ == "__main__":
    ranks.start(run)
