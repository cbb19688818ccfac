"""Save and load torchtitan's state when oppa asks for it, by torchtitan's own distributed checkpoints, which any layout loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.checkpointer.dcp import AsyncMode  # type: ignore[import-not-found,unused-ignore]

from oppa_client import run_files
from oppa_client.attempt import Resume
from oppa_client.loop.checkpoints import POSITION, require_same, stated_in


class RunCheckpoints:
    """Stands for a trainer's `CheckpointManager` under oppa: the checkpoints are those of the run.

    Args:
        manager: The manager, which reads and writes.
        resume: The state to go on from; None begins, with the weights of `initial_load_path` if the configuration has one.
        saved_after_step: Saves after a step if that is due.
    """

    def __init__(self, manager: Any, resume: Resume | None, saved_after_step: Callable[[], None]) -> None:
        self._manager, self._resume, self._saved_after_step = manager, resume, saved_after_step
        self._folder = Path(manager.folder).absolute()
        manager.folder = ""  # else it would begin with the newest state in its folder, be that of another run

    def load(self, step: int = -1) -> bool:
        """Load the checkpoint that oppa names."""
        if self._resume is None:
            return bool(self._manager.load())
        manager = self._manager
        with torch.no_grad():
            manager.dcp_load(manager._flattened_model_states_sd(), self._resume.checkpoint, from_hf=False, from_quantized=False)
        return True

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        """Save after a step if that is due for oppa, whatever torchtitan's interval is."""
        self._saved_after_step()
        return False

    def write(self, step: int, stated: dict[str, Any]) -> Path:
        """Save weights, moments and counters, and what the checkpoint states; all ranks call it."""
        folder = self._folder / f"step-{step}"
        self._manager.dcp_save(self._manager._flattened_model_states_sd(), str(folder), AsyncMode.DISABLED)
        if dist.get_rank() == 0:
            run_files.write(folder, POSITION, stated)
        dist.barrier()
        return folder

    def maybe_wait_for_staging(self) -> None:
        """Wait for nothing: checkpoints are complete when they are saved."""

    def close(self) -> None:
        """Release what the manager holds."""
        self._manager.close()


def required(resume: Resume, **wanted: Any) -> dict[str, Any] | None:
    """Return the estimate of the noise scale in a checkpoint; raise ContractError if it does not belong to the run."""
    stated = stated_in(Path(resume.checkpoint))
    require_same(stated, step=resume.step, samples=resume.samples, **wanted)
    noise_scale: dict[str, Any] | None = stated["noise_scale"]
    return noise_scale
