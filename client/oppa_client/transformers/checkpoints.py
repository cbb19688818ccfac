"""Refuse a checkpoint that the plain `Trainer` cannot go on from."""

from __future__ import annotations

from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from oppa_client.loop.checkpoints import POSITION, stated_in
from oppa_client.run_files import ContractError


def require_steady(checkpoint: str | bool | None, output_dir: str | None) -> None:
    """Raise ContractError if a `Trainer` that counts steps would resume a checkpoint whose batch has changed."""
    place = get_last_checkpoint(output_dir) if checkpoint is True and output_dir and Path(output_dir).is_dir() else checkpoint
    if isinstance(place, str) and (Path(place) / POSITION).is_file():
        samples = stated_in(Path(place))["samples"]
        cause = f"the checkpoint `{place}` was saved under oppa after {samples} samples, which the plain `Trainer` cannot find again"
        raise ContractError(f"{cause}: resume it with `oppa train`, or load its weights with `from_pretrained`")
