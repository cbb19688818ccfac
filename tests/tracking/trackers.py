"""Provide trackers of a user: one records every call, and some are of no use. A session loads this file as a module of its own."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CALLS = "calls.jsonl"


class Recorded:
    """Appends one line for each call to `calls.jsonl`."""

    def __init__(self, experiment: str, folder: Path, *, note: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / CALLS
        self._write("made", experiment=experiment, note=note)

    def open(self, run: Any) -> None:
        self._write("open", run=run.id, name=run.name, parent=run.parent, parameters=dict(run.parameters))

    def log(self, run: Any, values: Mapping[str, Any], step: int) -> None:
        self._write("log", run=run.id, values=dict(values), step=step)

    def artifact(self, run: Any, file: Path) -> None:
        self._write("artifact", run=run.id, file=file.name)

    def finish(self, run: Any, status: str) -> None:
        self._write("finish", run=run.id, status=status)

    def _write(self, call: str, **facts: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"call": call, **facts}) + "\n")


class Broken(Recorded):
    """Fails at the first value."""

    def log(self, run: Any, values: Mapping[str, Any], step: int) -> None:
        raise ConnectionError("the server is gone\nand so on")


class Hanging(Recorded):
    """Hangs at the end of a run."""

    def finish(self, run: Any, status: str) -> None:
        print("this library prints", flush=True)
        time.sleep(600)


def calls(folder: Path) -> list[dict[str, Any]]:
    """Return the calls that a tracker has recorded, oldest first."""
    return [json.loads(line) for line in (folder / CALLS).read_text().splitlines()]
