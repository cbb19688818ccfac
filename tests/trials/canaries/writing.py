"""Provide models, trackers and step times of the programs here, with the packages that are installed."""

import atexit
import importlib.util
import itertools
import json
import os
import time
from pathlib import Path

import torch

HAS_WANDB, HAS_TENSORBOARD = (importlib.util.find_spec(name) is not None for name in ("wandb", "tensorboardX"))


def start_tracker(folder):
    """Begin a run of W&B on rank 0, offline unless the environment states another mode."""
    if HAS_WANDB and os.environ.get("RANK", "0") == "0":
        import wandb

        wandb.init(project="canary", dir=folder, mode=os.environ.get("WANDB_MODE", "offline")).log({"loss": 1.0})


def model(width):
    """Return one layer, or a small network of this width."""
    if not width:
        return torch.nn.Linear(4, 1)
    layers = torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
    return torch.nn.Sequential(*layers)


ENDS_S = []


def end_step():
    """Note that a step ends. Rank 0 writes the seconds of all steps to the file STEP_TIMES, if there is such a variable."""
    if "STEP_TIMES" in os.environ and int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        if not ENDS_S:
            atexit.register(write_times)
        ENDS_S.append(time.perf_counter())


def write_times():
    """Write the seconds between the ends of steps."""
    Path(os.environ["STEP_TIMES"]).write_text(json.dumps([after - before for before, after in itertools.pairwise(ENDS_S)]))
