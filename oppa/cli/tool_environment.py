"""Leave the environment that a tool made for oppa alone, so that programs do not start on it.

`uvx` and `uv run` put the folder of oppa's commands first on PATH. A user's `torchrun` would then be that of oppa's own environment.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

RECEIPTS = ("uv-receipt.toml", "pipx_metadata.json")
"""Files that `uv tool install` and pipx leave in an environment."""
_UV_CACHE = re.compile(r"(archive|builds|environments)-v\d+")
"""Folders of uv's cache that hold environments for one run."""


def leave(variables: MutableMapping[str, str], *, prefix: Path = Path(sys.prefix)) -> None:
    """Remove an environment that was made for oppa from PATH and VIRTUAL_ENV; an environment that the user activated stays.

    Args:
        variables: Environment variables of this process, which are changed.
        prefix: Folder of the environment that oppa runs in.
    """
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    variables["PATH"] = os.pathsep.join(folder for folder in folders if not _made_for_oppa(Path(folder).parent, prefix))
    if _made_for_oppa(Path(variables.get("VIRTUAL_ENV", "/")), prefix):
        del variables["VIRTUAL_ENV"]


def _made_for_oppa(environment: Path, prefix: Path) -> bool:
    """Return whether a folder is an environment that a tool made to run oppa and nothing else."""
    if _UV_CACHE.fullmatch(environment.parent.name):
        return True
    return environment == prefix and any((environment / name).is_file() for name in RECEIPTS)
