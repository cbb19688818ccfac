"""Save the state of a loop around Accelerate so that any layout can resume it: by PyTorch's distributed checkpoints."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import checkpointing  # type: ignore[import-untyped,unused-ignore]
from accelerate.utils import set_seed  # type: ignore[import-untyped,unused-ignore]
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class Checkpoints:
    """Saves and loads weights and moments under any layout, and the other state of an `Accelerator`.

    Args:
        accelerator: The `Accelerator`; its gradient scaler and the objects that `register_for_checkpointing` was given are saved too.
        model: The prepared model.
        optimizer: The prepared optimizer.
    """

    def __init__(self, accelerator: Any, model: Any, optimizer: Any) -> None:
        self._accelerator, self._model = accelerator, model
        self._optimizer = getattr(optimizer, "optimizer", optimizer)

    def save(self, folder: Path) -> None:
        """Save a checkpoint; every rank calls it."""
        accelerator = self._accelerator
        with _alone_or_not():
            save(self._state(), checkpoint_id=folder)
        rank = accelerator.process_index
        checkpointing.save_accelerator_state(
            str(folder), [], [], [], [], rank, 0, accelerator.scaler if rank == 0 else None, save_on_each_node=True
        )
        if rank == 0:
            for number, each in enumerate(accelerator._custom_objects):
                checkpointing.save_custom_state(each, str(folder), number)

    def load(self, folder: Path, seed: int | None) -> None:
        """Load a checkpoint; every rank calls it.

        Args:
            folder: The checkpoint.
            seed: Seed of this rank's random numbers; None: those of the rank of the same number go on.
        """
        state = self._state()
        saved, moments = FileSystemReader(folder).read_metadata().state_dict_metadata, state["optimizer"]["state"]
        # A parameter that had no gradient before the checkpoint has no moments in it, and gets none.
        absent = [name for name in moments if not any(key.startswith(f"optimizer.state.{name}.") for key in saved)]
        fresh = {name: moments.pop(name) for name in absent}
        with _alone_or_not():
            load(state, checkpoint_id=folder)
        moments.update(fresh)
        set_state_dict(self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        for group, stated in zip(self._optimizer.param_groups, state["optimizer"]["param_groups"]):
            for parameter in (each for each, name in zip(group["params"], stated["params"]) if name in fresh):
                self._optimizer.state.pop(parameter, None)
        checkpointing.load_accelerator_state(str(folder), [], [], [], [], self._accelerator.process_index, self._accelerator.scaler)
        for number, each in enumerate(self._accelerator._custom_objects):
            checkpointing.load_custom_state(each, str(folder), number)
        if seed is not None:
            set_seed(seed)

    def _state(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self._model, self._optimizer)
        return {"model": weights, "optimizer": moments}


@contextlib.contextmanager
def _alone_or_not() -> Iterator[None]:
    """Save or load also on one process without a group, of which PyTorch warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
