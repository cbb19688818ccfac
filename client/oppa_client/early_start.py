"""Wait, in ranks that oppa has started early, until those of the layout before have left the devices."""

from __future__ import annotations

import os
import time
from pathlib import Path

from oppa_client import run_files

HOLD_POLL_S = 0.02
"""Seconds between two looks for the end of a hold."""
_declared = False
"""True once the program has called `wait_for_devices`."""


def wait_for_devices() -> None:
    """Wait, in ranks that oppa has started early, until those of the layout before have left the devices; elsewhere return at once.

    Call it after the imports, before anything uses a device or joins a process group. The run then has the ability
    `early_start`, whatever opens it.
    """
    global _declared
    _declared = True
    if "OPPA_TRIAL" in os.environ:
        folder = Path(os.environ["OPPA_TRIAL"])
        if state_waiting(folder, os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")):
            wait_for_terms(folder)


def is_declared() -> bool:
    """Return True once the program has called `wait_for_devices`."""
    return _declared


def state_waiting(folder: Path, rank: int | str, ranks: int | str) -> bool:
    """Return True in a rank that has to wait for its terms, after it has stated that it does."""
    names = run_files.names_in(folder)
    if run_files.HOLD not in names or run_files.ATTEMPT in names:
        return False
    run_files.write(folder, run_files.WAITING.format(rank, ranks), {})
    return True


def wait_for_terms(folder: Path) -> None:
    """Return once the ranks of the layout before have left, and attempt.json is there."""
    while run_files.ATTEMPT not in run_files.names_in(folder):
        time.sleep(HOLD_POLL_S)
