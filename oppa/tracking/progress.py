"""Store how far a tracker has followed a study or a run, so that a later session continues there."""

import json
from pathlib import Path
from typing import Any

from oppa.atomic_write import write_atomically
from oppa.regular_file import read_json
from oppa.tuning.session import file_name

FOLDER = "tracking"
"""Folder of the trackers' progress and logs, in that of a study or a run."""


def file_of(folder: Path, tracker: str, suffix: str) -> Path:
    """Return the file of a tracker, `.json` for its progress or `.log` for its output, in the folder of a study or a run."""
    return folder / FOLDER / (file_name(tracker) + suffix)


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
