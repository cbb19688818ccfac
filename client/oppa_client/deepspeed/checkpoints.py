"""Save and load the state of an engine; another layout loads it as a universal checkpoint, which rank 0 makes of it.

A checkpoint is a folder:

oppa_position.json    how far the run was, and the layout of its ranks; written last
state/                what DeepSpeed's `save_checkpoint` writes
universal/            the same for other degrees under ZeRO; made when they need it, and complete with `latest_universal`
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.checkpoint import ds_to_universal  # type: ignore[import-not-found,unused-ignore]
from deepspeed.checkpoint.constants import (  # type: ignore[import-not-found,unused-ignore]
    UNIVERSAL_CHECKPOINT_INFO,
    UNIVERSAL_CHECKPOINT_VERSION_KEY,
    UNIVERSAL_CHECKPOINT_VERSION_VALUE,
)

from oppa_client.deepspeed.support import is_pipeline

STATE, UNIVERSAL, COMPLETE = "state", "universal", "latest_universal"


def layout_of(engine: Any) -> dict[str, int]:
    """Return what decides how DeepSpeed divides the state among files."""
    pp = engine.num_stages if is_pipeline(engine) else 1
    return {"zero_stage": engine.zero_optimization_stage(), "dp": engine.dp_world_size, "tp": engine.autotp_size() or 1, "pp": pp}


def format_of(engine: Any) -> dict[str, Any]:
    """Return what has to be the same in every layout that loads a checkpoint.

    A universal checkpoint fits any degree, but those of ZeRO 3 differ from those of ZeRO 1 and 2. Without ZeRO there is none: weights and
    moments are whole on each rank, or parts of a tensor-parallel or pipeline rank.
    """
    layout = layout_of(engine)
    stage, degrees = layout["zero_stage"], {"tp": layout["tp"], "pp": layout["pp"]}
    return {"zero_stage": "1 or 2"} if stage in (1, 2) else {"zero_stage": stage, **degrees}


def save(engine: Any, folder: Path) -> None:
    """Save weights, moments, schedule and counters; all ranks call it.

    What a save that was cut short has left in the folder is removed. A universal checkpoint would take the files of other ranks as its own.
    """
    if dist.get_rank() == 0 and folder.exists():
        shutil.rmtree(folder)
    dist.barrier()
    version = {UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE}
    # AutoTP states itself how its parameters are cut.
    stated = {} if engine.autotp_size() > 1 else {UNIVERSAL_CHECKPOINT_INFO: version}
    engine.save_checkpoint(str(folder), tag=STATE, client_state=stated, save_latest=False)


def load(engine: Any, folder: Path, saved_by: dict[str, int]) -> None:
    """Load what `save` wrote; all ranks call it.

    Args:
        engine: Engine in the present layout.
        folder: Folder of the checkpoint.
        saved_by: Layout that saved it.
    """
    layout = layout_of(engine)
    universal = layout["zero_stage"] > 0 and layout != saved_by
    if universal and dist.get_rank() == 0:
        _convert(folder)
    dist.barrier()
    groups = [{name: value for name, value in group.items() if name != "params"} for group in engine.optimizer.param_groups]
    engine._config.load_universal_checkpoint = universal
    engine.load_checkpoint(str(folder), tag=UNIVERSAL if universal else STATE)
    # ZeRO 3 takes weight decay and the like of all groups from the first group of a universal checkpoint.
    for group, own in zip(engine.optimizer.param_groups, groups):
        group.update(own)
    # It also makes all of them share one tensor of steps, which torch's optimizers would increment once for each.
    for state in engine.basic_optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()


def _convert(folder: Path) -> None:
    """Write the universal checkpoint, unless a layout before has made it already."""
    if (folder / COMPLETE).is_file():
        return
    places = {"input_folder": str(folder / STATE), "output_folder": str(folder / UNIVERSAL)}
    # One worker: no process is forked while process groups exist.
    how = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True, "inject_missing_state": True}
    with contextlib.redirect_stdout(sys.stderr):
        ds_to_universal.main(argparse.Namespace(**places, **how))
