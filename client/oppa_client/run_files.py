"""Read and write the files that a training program and oppa exchange in the folder of an attempt; each is whole or absent.

hold.json            made by oppa before an early start: attempt.json follows once the ranks of the layout before have left
waiting-R-of-N.json  written by rank R of N ranks of an early start, which waits for attempt.json
attempt.json         what to train, and from which checkpoint; written by oppa before the start, or at the end of a hold
asked-N.json         a batch that oppa asks for, as plan number N, and the samples after which it may no longer begin
leave.json           oppa's request to save and leave, and the samples after which that may no longer be followed
abilities.json       what the program can do; this file and the following ones are written by rank 0
measurements.jsonl   a line for each optimizer step
plan-N.json          plan number N with its first step, which all ranks read before that step
leaving.json         the step before which all ranks leave
paused.json          what the program does instead of training, and until when that may last
saved-N.json         a complete checkpoint after N steps
left.json            the checkpoint with which the program left
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

PROTOCOL, OLDEST = 1, 1
"""Version of these files, and the oldest version that this package still speaks."""
ATTEMPT, ABILITIES, MEASUREMENTS, PAUSED, LEFT = "attempt.json", "abilities.json", "measurements.jsonl", "paused.json", "left.json"
HOLD, LEAVE, LEAVING = "hold.json", "leave.json", "leaving.json"
ASKED, PLAN, SAVED, WAITING = "asked-{}.json", "plan-{}.json", "saved-{}.json", "waiting-{}-of-{}.json"


class ContractError(RuntimeError):
    """Reports that the program and oppa cannot go on together."""


def require_version(attempt: dict[str, Any], package: str) -> None:
    """Raise ContractError, which names both versions, if oppa's and this package's share none.

    Args:
        attempt: The content of attempt.json.
        package: Version of this package.
    """
    newest, oldest = int(attempt.get("protocol", 0)), int(attempt.get("oldest", attempt.get("protocol", 0)))
    if oldest <= PROTOCOL and newest >= OLDEST:
        return
    theirs = f"oppa {attempt.get('oppa', 'of an unknown version')} speaks the protocol of runs in version {newest}"
    raise ContractError(f"{theirs}, but oppa-client {package} speaks version {PROTOCOL}: install the client of that oppa")


def require_present(names: set[str]) -> None:
    """Raise ContractError if the files of an attempt state that the program has left it."""
    if LEFT in names:
        hint = "a run is one training, so train the other one in a program of its own"
        raise ContractError(f"this program has left its run, and opens it again for another training: {hint}")


def finite(value: Any) -> Any:
    """Return a number, or a text, that JSON can state; None if there is none, or it is not finite."""
    if value is None or isinstance(value, str):
        return value
    return float(value) if math.isfinite(value) else None


def whole(name: str, value: Any) -> int:
    """Return a number of `run.step`; raises ContractError if it is not a whole number from 0 on."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number < 0 or number != value:
        raise ContractError(f"`run.step({name}={value!r})`: state a whole number from 0 on")
    return number


def optional(name: str, value: Any) -> int | None:
    """Return a number of `run.step` as `whole` does, or None if there is none."""
    return None if value is None else whole(name, value)


def names_in(folder: Path) -> set[str]:
    """Return the names of a folder's files. A network file system caches that a file is missing, but reads a folder anew."""
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


def read(folder: Path, name: str) -> Any:
    """Return the content of a file; raises OSError if there is none."""
    return json.loads((folder / name).read_text())


def write(folder: Path, name: str, values: Any) -> None:
    """Write a file so that readers find all of it or none; raises OSError."""
    draft(folder, name, values).replace(folder / name)


def draft(folder: Path, name: str, values: Any) -> Path:
    """Write what a file will have to a hidden one, and return its path; raises OSError."""
    path = folder / f".{name}.{os.getpid()}"
    path.write_text(json.dumps(values) + "\n")
    return path


class Lines:
    """Appends lines to a file, each in one write; what the file system refuses is written with the next line."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._rest = path, -1, b""

    def append(self, values: dict[str, Any]) -> None:
        """Append a line; raises OSError if it cannot be written now."""
        self._rest += json.dumps(values).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what is left of earlier lines; raises OSError if it cannot be written now."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        while self._rest:
            self._rest = self._rest[os.write(self._file, self._rest) :]
