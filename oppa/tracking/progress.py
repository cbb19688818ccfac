"""Store how far a tracker has followed a study or a run, so that a later session continues there."""

import json
import re
from pathlib import Path
from typing import Any

from oppa.atomic_write import write_atomically
from oppa.regular_file import read_json

FOLDER = "tracking"
"""Folder of the trackers' progress and logs, in that of a study or a run."""
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


def file_of(folder: Path, tracker: str, suffix: str) -> Path:
    """Return the file of a tracker, `.json` for its progress or `.log` for its output, in the folder of a study or a run."""
    return folder / FOLDER / (_NOT_IN_NAMES.sub("-", tracker) + suffix)


class Progress:
    """Holds a few JSON values; without a readable file there are none, and the tracker begins again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            stored = read_json(file)
        except (OSError, ValueError):
            stored = None
        self.values: dict[str, Any] = stored if isinstance(stored, dict) else {}

    def store(self, **values: Any) -> None:
        """Change some values, and write the file."""
        self.values |= values
        write_atomically(self._file, json.dumps(self.values).encode(), durable=False)
