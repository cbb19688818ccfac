"""Folders that a tuner makes outside its study, named so that a later sweep knows whose they were.

oppa-<study, its first letters>-<the tuner's process id>-<its start time>-<random>
"""

import os
from pathlib import Path

from oppa.trials import processes
from oppa.trials.processes import Process


def name(study: str) -> str:
    """A new name for a folder of this study and this tuner."""
    tuner = processes.this_process()
    return f"{_prefix(study)}{tuner.pid}-{tuner.started}-{os.urandom(3).hex()}"


def abandoned(parent: Path, study: str) -> list[Path]:
    """The folders of this study in `parent` whose tuners are dead."""
    return [folder for folder in parent.glob(f"{_prefix(study)}*") if not processes.is_living(_tuner(folder))]


def _prefix(study: str) -> str:
    return f"oppa-{study[:8]}-"


def _tuner(folder: Path) -> Process:
    pid, started, _ = folder.name.rsplit("-", 3)[1:]
    return Process(int(pid), int(started))
