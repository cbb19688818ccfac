"""Keep the verifications of a study: a numbered folder each, with a study of its own and, once it has ended, its verdict."""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa.atomic_write import write_atomically
from oppa.errors import OppaError, StudyError
from oppa.plain_text import plain_text
from oppa.problem.problem import Problem
from oppa.regular_file import read_json
from oppa.study import Study
from oppa.study.database import FILE, disk_errors
from oppa.trials.orphans import end_orphans
from oppa.tuning.verify.changes import EnvironmentChange
from oppa.tuning.verify.finished import require_idle

FOLDER, VERDICT = "verifications", "verdict.json"
RESUMED_S = 24 * 3600.0
"""Age up to which a verification that was interrupted goes on; an older one stays unfinished, and a new one begins."""
UNFINISHED = "unfinished"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PastVerification:
    """Holds a verification as its folder describes it."""

    number: int
    folder: Path
    date: str
    """When it ended, in UTC; empty if it has not."""
    status: str
    """`passed`, `regression`, `inconclusive`, or `unfinished`."""
    summary: str
    """The verdict in a sentence or two."""
    changed: tuple[str, ...]
    """Changes since the study, such as `NCCL 2.27.3 -> 2.28.1`."""
    values: Mapping[str, Any]
    """The verdict as `oppa verify --json` printed it; empty if it is unfinished."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: the verdict, or what is known of a verification without one."""
        known = {"verification": self.number, "folder": str(self.folder), "status": self.status, "summary": self.summary}
        return {**known, **self.values}


def past(study: Path) -> list[PastVerification]:
    """Return the verifications of a study, oldest first; one whose verdict is missing or damaged counts as unfinished."""
    return [_read(number, folder) for number, folder in _numbered(study)]


def write_verdict(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the verdict of a verification; raises StudyError if it cannot be written."""
    with disk_errors(folder):
        write_atomically(folder / VERDICT, json.dumps(values, indent=1).encode())


def open_folder(study: Path, problem: Problem) -> tuple[int, Path]:
    """Return the number and the folder of the verification to run: the last one, if it can go on, else a new one.

    Raises:
        StudyError: a trial of the last one runs, or no folder can be made.
    """
    earlier = list(_numbered(study))
    for number, folder in earlier[-1:]:
        if not (folder / VERDICT).exists() and _goes_on(folder, problem):
            return number, folder
    number = earlier[-1][0] + 1 if earlier else 1
    with disk_errors(study):
        (study / FOLDER).mkdir(exist_ok=True)
        while True:
            folder = study / FOLDER / f"{number:03d}"
            try:
                folder.mkdir()
                return number, folder
            except FileExistsError:
                number += 1


def _goes_on(folder: Path, problem: Problem) -> bool:
    """Return whether an unfinished verification can go on: it is of today, of the same problem, and on the same software."""
    if not (folder / FILE).exists():
        return False
    try:
        study = Study(folder)
    except StudyError:
        return False
    with study:
        require_idle(study, "a verification of the study")
        end_orphans(study.uuid)
        try:
            then = study.problem
        except OppaError:
            return False
        same = then.software == problem.software and study.meta["fingerprint"] == problem.fingerprint
        return same and time.time() - float(study.meta["created_at"]) <= RESUMED_S


def _numbered(study: Path) -> Iterator[tuple[int, Path]]:
    try:
        found = [folder for folder in (study / FOLDER).iterdir() if folder.name.isdecimal() and folder.is_dir()]
    except OSError:
        return
    yield from sorted((int(folder.name), folder) for folder in found)


def _read(number: int, folder: Path) -> PastVerification:
    try:
        values = read_json(folder / VERDICT)
        texts = {name: plain_text(values[name]) for name in ("date", "status", "summary")}
        changes = (EnvironmentChange(name=each["name"], then=each["then"], now=each["now"]) for each in values["changed"])
        changed = tuple(plain_text(str(each)) for each in changes)
    except (OSError, ValueError, TypeError, KeyError):
        summary = f"it has no verdict; its trials are in `{folder}`"
        return PastVerification(number=number, folder=folder, date="", status=UNFINISHED, summary=summary, changed=(), values={})
    return PastVerification(number=number, folder=folder, changed=changed, values=values, **texts)
