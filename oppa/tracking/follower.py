"""Follow a study or a run until its session ends, in a process of its own with one tracker.

The process is `python -m oppa.tracking FOLDER NAME CHOICE`; the choice is `[tracking]` of the session's job, as JSON. Its standard input is
a pipe from the session, which writes how it ended. Each line of its standard output is a warning for the user.
"""

import contextlib
import fcntl
import json
import os
import select
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, get_args

from oppa.errors import OppaError
from oppa.problem.training import TrackingChoice
from oppa.study import Study
from oppa.tracking.progress import Progress, file_of
from oppa.tracking.registry import make_tracker
from oppa.tracking.run_recorder import RunRecorder
from oppa.tracking.study_recorder import StudyRecorder
from oppa.tracking.tracker import Status
from oppa.training.run.run_folder import SPEC, RunSpec

POLL_S = 1.0
"""Seconds between two reads of the records."""


class SessionRecorder(Protocol):
    """Passes the records of a study or a run on to a tracker."""

    def update(self) -> None:
        """Record what is new."""

    def finish(self, status: Status) -> None:
        """End the run."""


def main() -> None:
    """Follow the folder that `sys.argv` names with the tracker that it names."""
    with contextlib.suppress(OSError):  # whatever else runs here goes first: a trial measures this machine
        os.nice(19)
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to the log
    folder, name, choice = Path(sys.argv[1]), sys.argv[2], TrackingChoice.from_dict(json.loads(sys.argv[3]))
    try:
        follow(folder, name, choice, words=0)
    except Exception as error:  # noqa: BLE001 (a tracker is foreign code, and must not break the session)
        traceback.print_exc()
        why = error.message if isinstance(error, OppaError) else f"{type(error).__name__}: {error}"
        first = why.strip().partition("\n")[0]
        print(f"the tracker `{name}` was set aside: {first} (see {file_of(folder, name, '.log')})", file=reports, flush=True)


def follow(folder: Path, name: str, choice: TrackingChoice, *, words: int) -> None:
    """Record the study or the run in a folder until its session reports how it ended.

    The follower of another session records all trials. This one waits for its end, and does nothing if its own session ends before.

    Args:
        name: Name of the tracker, one of the choice.
        words: Descriptor that the session writes the status to; its end alone counts as an interruption.
    """
    status: Status | None = None
    with _lock(file_of(folder, name, ".log")) as lock:
        while status is None and not _is_taken(lock):
            status = _status(words)
        if status is not None:
            return
        with _recorder(folder, name, choice) as recorder:
            while status is None:
                status = _status(words)
                recorder.update()
            recorder.finish(status)


@contextlib.contextmanager
def _lock(file: Path) -> Iterator[int]:
    """Yield the descriptor of the file that followers of one folder and tracker lock."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


def _is_taken(lock: int) -> bool:
    """Take a lock, and return True unless another follower holds it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def _recorder(folder: Path, name: str, choice: TrackingChoice) -> Iterator[SessionRecorder]:
    """Yield the recorder of a folder."""
    progress = Progress(file_of(folder, name, ".json"))
    if (folder / SPEC).exists():
        yield RunRecorder(folder, make_tracker(name, choice, job=RunSpec.read(folder).problem.name), progress)
        return
    with Study(folder) as study:
        yield StudyRecorder(study, make_tracker(name, choice, job=study.problem.name), progress)


def _status(words: int) -> Status | None:
    """Wait for a moment, and return how the session ended; None while it goes on."""
    if not select.select([words], [], [], POLL_S)[0]:
        return None
    said = os.read(words, 100).decode()
    return next((status for status in get_args(Status) if status == said), "interrupted")
