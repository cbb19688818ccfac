"""Read the file in which a checkpoint states how far the run was, and refuse a checkpoint of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def require_same(stated: dict[str, Any], **wanted: Any) -> None:
    """Raise ContractError if a checkpoint states another value than the run has, such as another seed or size of the data."""
    for name, value in wanted.items():
        if stated[name] != value:
            raise ContractError(f"the checkpoint has `{name} = {stated[name]}`, but the run has `{name} = {value}`")
