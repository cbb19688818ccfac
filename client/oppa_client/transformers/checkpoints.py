"""Read the file in which a checkpoint states how far the run was, and refuse a checkpoint that training cannot go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from oppa_client import run_files
from oppa_client.run_files import ContractError

POSITION = "oppa_position.json"
"""File of a checkpoint that states how far the run was."""


def stated_in(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint states; raises ContractError if it was not saved under oppa, or is not complete."""
    if not (checkpoint / POSITION).is_file():
        raise ContractError(f"the checkpoint `{checkpoint}` has no `{POSITION}`: it was not saved under oppa, or is not complete")
    stated: dict[str, Any] = run_files.read(checkpoint, POSITION)
    return stated


def require_steady(checkpoint: str | bool | None, output_dir: str | None) -> None:
    """Raise ContractError if a `Trainer` that counts steps would resume a checkpoint whose batch has changed."""
    place = get_last_checkpoint(output_dir) if checkpoint is True and output_dir and Path(output_dir).is_dir() else checkpoint
    if isinstance(place, str) and (Path(place) / POSITION).is_file():
        samples = stated_in(Path(place))["samples"]
        cause = f"the checkpoint `{place}` was saved under oppa after {samples} samples, which the plain `Trainer` cannot find again"
        raise ContractError(f"{cause}: resume it with `oppa train`, or load its weights with `from_pretrained`")
