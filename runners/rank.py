"""Run one rank of a trial that trains oppa's own model; the programs here share this code, whichever framework takes the steps.

A program defines how a rank's part of the model is built. The loop, the measurements and the reports of failures are the same for all.

A cold start is by torchrun, or anything that sets RANK and WORLD_SIZE. In a warm start, a parent imports the program once, and forks a
child per rank that calls its `run`. Importing a program therefore loads all that training needs, and starts no thread.

    OPPA_TRIAL        the trial's folder
    OPPA_RENDEZVOUS   address at which ranks meet, as torch's `init_method`; default `env://`
"""

import functools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and numpy, whose thread pools would not survive a fork
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler's own log

import oppa_client
import torch
import torch.distributed as dist

from oppa.errors import CheckpointError, InputError
from oppa.training.parallel.mesh import open_mesh
from oppa.training.profiler.memory import allocation_failure, ran_out_of_memory
from oppa.training.run.trial import train
from oppa.trials.trial_folder import TrialSpec

torch.set_num_threads(1)

LOST_PEER_MESSAGES = ("onnection closed by peer", "onnection reset by peer", "roken pipe", "onnection refused", "imed out")
CULPRIT_S = 1.0


def run(build, folder, rank, world):
    """Run this rank of the trial in `folder` with the replica that `build(spec, mesh)` returns; return the exit code."""
    return guarded(functools.partial(_train, build), folder, rank, world)


def guarded(work, folder, rank, world):
    """Call `work(trial, rank, world)`, report a failure in the trial's folder, and return the exit code, 0 or 1."""
    trial = oppa_client.Trial(folder)
    try:
        work(trial, rank, world)
    except Exception as error:  # noqa: BLE001 - every error is reported in the trial's folder
        _report(trial, rank, error)
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


def _report(trial, rank, error):
    if ran_out_of_memory(error):
        trial.end("out_of_memory", rank=rank, cause=allocation_failure(error), error=error)
    elif isinstance(error, InputError):
        kind = "" if isinstance(error, CheckpointError) else "illegal configuration: "
        trial.end("failed", rank=rank, cause=f"{kind}{error.message}", error=error)
    elif lost_peer(error):
        # A rank that dies makes its peers fail. The first report counts, so the rank that failed first gets time to make it.
        deadline = time.monotonic() + CULPRIT_S
        while time.monotonic() < deadline and not (trial.folder / "outcome.json").exists():
            time.sleep(0.01)
        trial.end("failed", cause=f"lost a peer: {error}", error=error)
    else:
        trial.end("failed", rank=rank, error=error)


def lost_peer(error):
    """Return True if `error`, or an error that caused it, only means that another rank is gone."""
    while error is not None:
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(text in str(error) for text in LOST_PEER_MESSAGES)
        ):
            return True
        error = error.__cause__
    return False


def main(build):
    """Run the rank of a trial that the environment variables name."""
    start(functools.partial(run, build))


def start(run_rank):
    """Call `run_rank(folder, rank, world)` for the rank that the environment variables name, and exit with the code that it returns."""
    code = run_rank(Path(os.environ["OPPA_TRIAL"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # saves the second that tearing torch down takes
