"""Start and end the processes that follow a session with its trackers."""

import contextlib
import dataclasses
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oppa.launchers.provider import SLOT
from oppa.problem.problem import Problem
from oppa.problem.training import TrackingChoice
from oppa.tracking.progress import file_of
from oppa.tracking.tracker import Status
from oppa.trials.guarded_process import GuardedProcess

if TYPE_CHECKING:  # a job without trackers loads none of this
    from oppa.control.training_session.callback import TrainCallback
    from oppa.tuning.session import SessionCallback

PATIENCE_S = 60.0
"""Seconds that the end of a session waits for its trackers."""
GRACE_S = 2.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


def require_trackers(choice: TrackingChoice | None) -> None:
    """Refuse trackers that cannot be made, before there is a study or a run.

    Raises:
        InputError: a tracker is unknown, or does not accept an option.
        EnvironmentLackingError: a tracker's package is not installed.
    """
    if choice is not None:
        from oppa.tracking import registry

        registry.require_trackers(choice)


def tracked(problem: Problem, callback: "SessionCallback | None") -> "SessionCallback | None":
    """Return a callback that also records the session's study with the trackers of its job."""
    if (choice := _choice(problem)) is None:
        return callback
    from oppa.tuning.session import search_callback

    return lambda session: _following(session.study.folder, choice, search_callback(session, callback))


def tracked_run(problem: Problem, callback: "TrainCallback | None") -> "TrainCallback | None":
    """Return a callback that also records the run with the trackers of its job."""
    if (choice := problem.tracking) is None:
        return callback
    from oppa.control.training_session.callback import run_callback

    return lambda session: _following(session.folder, choice, run_callback(session, callback))


@contextlib.contextmanager
def _following(folder: Path, choice: TrackingChoice, opened: AbstractContextManager[T]) -> Iterator[T]:
    """Open a callback, and follow a folder inside it."""
    with opened as callback, following(folder, choice):
        yield callback


def _choice(problem: Problem) -> TrackingChoice | None:
    """Return the trackers of a job; None in a further tuner of a study, whose first tuner records all trials."""
    return None if os.environ.get(SLOT, "0") != "0" else problem.tracking


@contextlib.contextmanager
def following(folder: Path, choice: TrackingChoice) -> Iterator[None]:
    """Follow the study or the run in a folder inside the context; trackers that fail are reported as warnings."""
    status: Status = "failed"
    followers: list[_Follower] = []
    for name in choice.names:
        try:
            followers.append(_Follower(folder, name, choice))
        except OSError as error:
            _log.warning("the tracker `%s` was not started: %s", name, error)
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        for follower in followers:
            follower.end(status)
        deadline_s = time.monotonic() + PATIENCE_S
        for follower in followers:
            follower.wait(deadline_s)


class _Follower:
    """Runs a process that follows a folder with one tracker. Its standard output consists of warnings."""

    def __init__(self, folder: Path, name: str, choice: TrackingChoice) -> None:
        log = file_of(folder, name, ".log")
        log.parent.mkdir(exist_ok=True)
        self._name, self._log = name, log
        argv = [sys.executable, "-P", "-m", "oppa.tracking", str(folder), name, json.dumps(dataclasses.asdict(choice))]
        self._guard, self._in, out = GuardedProcess.with_pipes(
            f"the tracker `{name}`", argv, environment=os.environ, grace_s=GRACE_S, log=log
        )
        self._reader = threading.Thread(target=_warn, args=(out,), daemon=True)
        self._reader.start()

    def end(self, status: Status) -> None:
        """Report to the process how the session ended."""
        with contextlib.suppress(OSError):  # it has ended before
            os.write(self._in, status.encode())
        os.close(self._in)

    def wait(self, deadline_s: float) -> None:
        """Wait for the process until a moment of monotonic time, and end it then."""
        self._reader.join(max(0.0, deadline_s - time.monotonic()))
        if self._reader.is_alive():
            _log.warning(
                "the tracker `%s` has not recorded all in %.0f s; the next session goes on (see %s)", self._name, PATIENCE_S, self._log
            )
        elif not self._guard.succeeded:
            _log.warning("%s (see %s)", self._guard.ended(), self._log)
        self._guard.close()
        self._reader.join()


def _warn(out: int) -> None:
    with os.fdopen(out, errors="replace") as lines:
        for line in lines:
            _log.warning("%s", line.rstrip())
