"""A rank of a trial that trains oppa's own model: what the programs here share, whichever framework steps it.

A program says how a rank's part of the model is built; the loop, the measurements, and what is told of a failure are the same for
all. Started cold, by torchrun or anything that sets RANK and WORLD_SIZE; or warm: a parent imports the program once, and forks a
child per rank that calls its `run`. Importing it therefore loads all that training needs, and starts no thread.

    OPPA_TRIAL        the trial's folder
    OPPA_RENDEZVOUS   where ranks meet, as torch's `init_method`; default `env://`
"""

import functools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and numpy, whose thread pools would not survive a fork
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own chatter

import report
import torch
import torch.distributed as dist

from oppa.errors import InputError
from oppa.training.memory import allocation_failure, ran_out_of_memory
from oppa.training.mesh import open_mesh
from oppa.training.trainer import train
from oppa.trials.wire import TrialSpec

torch.set_num_threads(1)

LOST_PEER_MESSAGES = ("onnection closed by peer", "onnection reset by peer", "roken pipe", "onnection refused", "imed out")
CULPRIT_S = 1.0


def run(build, folder, rank, world):
    """Run this rank of the trial in `folder` with what `build(spec, mesh)` returns; its exit code."""
    return guarded(functools.partial(_train, build), folder, rank, world)


def guarded(work, folder, rank, world):
    """Do a rank's work, `work(trial, rank, world)`, and tell in the trial's folder what it failed of; the exit code."""
    trial = report.Trial(folder)
    try:
        work(trial, rank, world)
    except Exception as error:  # noqa: BLE001 - whatever it was, the trial's folder is where it must be told
        _tell(trial, rank, error)
        return 1
    return 0


def _train(build, trial, rank, world):
    spec = TrialSpec.read(trial.folder)
    rendezvous = os.environ.get("OPPA_RENDEZVOUS", "env://")
    timeout_s = spec.training.collective_timeout_s
    with open_mesh(spec.configuration, spec.cluster, rank=rank, world=world, rendezvous=rendezvous, timeout_s=timeout_s) as mesh:
        for measurement in train(build, spec, mesh, trial.stop_requested):
            if rank == 0:
                trial.measured(measurement.step_time_s, memory_bytes=measurement.memory_bytes, loss=measurement.loss)
        if rank == 0:
            trial.end("completed")


def _tell(trial, rank, error):
    if ran_out_of_memory(error):
        trial.end("out_of_memory", rank=rank, cause=allocation_failure(error), error=error)
    elif isinstance(error, InputError):
        trial.end("failed", rank=rank, cause=f"illegal configuration: {error.message}", error=error)
    elif lost_peer(error):
        # A rank that dies takes its peers along. The first report is believed: leave the culprit time to make it.
        deadline = time.monotonic() + CULPRIT_S
        while time.monotonic() < deadline and not (trial.folder / "outcome.json").exists():
            time.sleep(0.01)
        trial.end("failed", cause=f"lost a peer: {error}", error=error)
    else:
        trial.end("failed", rank=rank, error=error)


def lost_peer(error):
    """Whether `error` only says that another rank is gone."""
    while error is not None:
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(text in str(error) for text in LOST_PEER_MESSAGES)
        ):
            return True
        error = error.__cause__
    return False


def main(build):
    """Run the rank of a trial that the environment names."""
    start(functools.partial(run, build))


def start(run_rank):
    """Call `run_rank(folder, rank, world)` of the rank that the environment names, and exit as it says."""
    code = run_rank(Path(os.environ["OPPA_TRIAL"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no second spent on tearing torch down
