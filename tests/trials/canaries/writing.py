"""Trackers of the programs here, with the packages that are installed."""

import importlib.util
import os

HAS_WANDB, HAS_TENSORBOARD = (importlib.util.find_spec(name) is not None for name in ("wandb", "tensorboardX"))


def start_tracker(folder):
    """Begin a run of W&B on rank 0, offline unless the environment states another mode."""
    if HAS_WANDB and os.environ.get("RANK", "0") == "0":
        import wandb

        wandb.init(project="canary", dir=folder, mode=os.environ.get("WANDB_MODE", "offline")).log({"loss": 1.0})
