"""Train a run of `oppa train` with oppa's own training core: one process per rank, in an attempt's folder (`run_folder`)."""

import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `rank`
import rank as ranks

sys.path.pop(0)  # its folders would shadow the frameworks of the same names

from oppa.control.service import discovery
from oppa.training.run.attempt import Attempt
from oppa.training.run.run_folder import RunSpec
from oppa.trials.trial_folder import TrialSpec


def run(folder, rank, world):
    """Run this rank of the attempt in `folder`, and return its exit code."""
    return ranks.guarded(train, folder, rank, world)


def train(trial, rank, world):
    """Train from the newest checkpoint on, and report each step and the end."""
    folder, spec = trial.folder.parents[1], TrialSpec.read(trial.folder)
    with line_of(folder, spec, rank) as controller:
        attempt = Attempt(
            folder,
            stop_requested=trial.stop_requested,
            on_step=lambda step: trial.measured(step.step_time_s, loss=step.loss if step.updated else None),
            controller=controller,
        )
        attempt.make(spec, rank=rank, world=world, rendezvous=os.environ.get("OPPA_RENDEZVOUS", "env://"))
    if rank == 0:
        trial.end("completed")


def line_of(folder, spec, rank):
    """Return rank 0's connection to the control service as a context; it holds None on other ranks, or if the run has no service."""
    if rank != 0:
        return contextlib.nullcontext()
    return discovery.connect(folder, spec.configuration, RunSpec.read(folder).problem) or contextlib.nullcontext()


if __name__ == "__main__":
    ranks.start(run)
