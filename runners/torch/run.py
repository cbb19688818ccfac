"""oppa's own training core as a run, `oppa train`: one process per rank, in the folder of an attempt (oppa/training/run_folder.py)."""

import os

import rank as ranks

from oppa.training.attempt import Attempt
from oppa.trials.wire import TrialSpec


def run(folder, rank, world):
    """Run this rank of the attempt in `folder`; its exit code."""
    return ranks.guarded(train, folder, rank, world)


def train(trial, rank, world):
    """Train from the newest checkpoint on."""
    attempt = Attempt(
        trial.folder.parents[1],
        stop_requested=trial.stop_requested,
        on_step=lambda step: trial.measured(step.step_time_s, loss=step.loss if step.updated else None),
    )
    rendezvous = os.environ.get("OPPA_RENDEZVOUS", "env://")
    attempt.make(TrialSpec.read(trial.folder), rank=rank, world=world, rendezvous=rendezvous)
    if rank == 0:
        trial.end("completed")


if __name__ == "__main__":
    ranks.start(run)
