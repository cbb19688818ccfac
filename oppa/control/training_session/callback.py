"""Call back while a run trains: the callbacks of its caller, and the user's requests to stop it."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from oppa.training.run.run_folder import STOP, RunSpec
from oppa.training.run.supervision import RunListener
from oppa.trials.interruption import Interruption
from oppa.trials.trial_folder import Measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSession:
    """Describes a run that is about to be trained, as a callback receives it."""

    run: RunSpec
    folder: Path


class RunCallback(RunListener):
    """Receives the events of a run; the methods of this base class do nothing."""

    def waiting(self) -> None:
        """Handle a tick during the wait for hosts; an exception propagates."""

    def controlled(self, url: str) -> None:
        """Handle the start of the run's own control service; `url` is its live page, with a token that belongs on no log."""


TrainCallback = RunCallback | Callable[[RunSession], AbstractContextManager[RunCallback]]
"""An object that watches a run; or a function that receives the session and returns such an object as a context manager."""


class _Stoppable(RunCallback):
    """Passes events on to a callback. Ctrl-C requests a stop at the next step boundary, and raises before the first step."""

    def __init__(self, callback: RunCallback, folder: Path, interruption: Interruption) -> None:
        self._callback, self._file, self._interruption, self._steps = callback, folder / STOP, interruption, 0
        self.failed, self.controlled = callback.failed, callback.controlled  # type: ignore[method-assign]
        self.is_preempted = callback.is_preempted  # type: ignore[method-assign]

    def waiting(self) -> None:
        self._interruption.check()
        self._callback.waiting()

    def began(self, attempt: Path) -> None:
        self._steps = 0
        self._callback.began(attempt)

    def stepped(self, measurement: Measurement) -> None:
        self._steps += 1
        self._callback.stepped(measurement)

    def tick(self) -> None:
        if not self._steps:
            self._interruption.check()
        self._callback.tick()

    def stop_requested(self) -> bool:
        return self._interruption.asked or self._file.exists() or self._callback.stop_requested()


def run_callback(session: RunSession, callback: TrainCallback | None) -> AbstractContextManager[RunCallback]:
    """Return what watches a run, as a context manager: the callback itself, what it returns for the run, or nothing at all."""
    made = RunCallback() if callback is None else callback
    return contextlib.nullcontext(made) if isinstance(made, RunCallback) else made(session)


@contextlib.contextmanager
def watched(session: RunSession, callback: TrainCallback | None) -> Iterator[RunCallback]:
    """Give what watches a run, in whose context Ctrl-C requests a stop."""
    interruption = Interruption()
    with interruption.caught_if_free(), run_callback(session, callback) as watcher:
        yield _Stoppable(watcher, session.folder, interruption)
