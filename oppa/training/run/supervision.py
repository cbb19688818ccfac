"""Supervise a run from outside its ranks: start them, and restart them from the newest checkpoint after a failure.

A rank that dies ends the others, and so the attempt, within seconds. A host that is lost does, too; the next attempt waits for another
one. Checkpoints on disk are complete or absent. If the supervisor itself is killed, the same command resumes the run.
"""

import dataclasses
import enum
import math
from pathlib import Path

from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec, checkpoints, new_attempt
from oppa.trials import trial_folder
from oppa.trials.launcher import Launcher
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import Measurement, TrialSpec

FRUITLESS = 3
"""Consecutive failed attempts without a new checkpoint after which the run is given up."""


class Ending(enum.Enum):
    """The way in which supervision ended."""

    FINISHED = "finished"
    """All samples were seen, and the state is saved."""
    STOPPED = "stopped"
    """A stop was requested, and the state is saved."""
    FAILED = "failed"
    """The run was given up after failed attempts."""
    REVOKED = "revoked"
    """Devices were taken away, again and again without a new checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of supervision; the run may be resumed later."""

    ending: Ending
    attempts: int
    last: TrialResult
    folder: Path
    """Folder of the last attempt."""


class RunListener:
    """Receives the events of a run's attempts; the methods of this base class do nothing."""

    def began(self, attempt: Path) -> None:
        """Handle the start of an attempt, before its ranks are launched."""

    def stepped(self, measurement: Measurement) -> None:
        """Handle an optimizer step."""

    def failed(self, attempt: Path, result: TrialResult) -> None:
        """Handle a failed attempt; another one may follow."""

    def tick(self) -> None:
        """Handle the periodic tick; an exception ends the ranks at once and propagates."""

    def stop_requested(self) -> bool:
        """Return whether to end at the next step boundary; called at every tick until it returns true."""
        return False


def supervise(launcher: Launcher, folder: Path, run: RunSpec, listener: RunListener) -> Outcome:
    """Train until all samples were seen, a stop is requested, or the run is given up; no process is left running.

    Raises:
        StudyError: if the folder cannot be written.
    """
    fruitless, attempts = 0, 0
    while True:
        before, attempt, attempts = checkpoints(folder)[:1], new_attempt(folder), attempts + 1
        listener.began(attempt)
        stop = _Stop(attempt, listener)
        result = run_trial(
            launcher,
            attempt,
            # The number of steps is unknown in advance; 0 accepts any number.
            TrialSpec.of(run.problem, run.configuration, study=run.uuid, trial=int(attempt.name), steps=0),
            limits=dataclasses.replace(run.problem.limits, trial_time_s=math.inf),
            on_step=listener.stepped,
            on_tick=stop.tick,
            # A checkpoint or a change of layout may come between two steps; ranks that wait for each other longer than this hang.
            hang_s=run.problem.training.collective_timeout_s,
        )
        ending = _ending(result, folder)
        if ending is None:
            listener.failed(attempt, result)
            fruitless = 0 if checkpoints(folder)[:1] != before else fruitless + 1
            revoked = result.outcome == "interrupted"
            cannot_start = not revoked and not before and not result.steps  # a run that fails before its first step will fail again
            if fruitless < FRUITLESS and not cannot_start and not stop.made:
                continue
            ending = Ending.REVOKED if revoked else Ending.FAILED
        return Outcome(ending=ending, attempts=attempts, last=result, folder=attempt)


class _Stop:
    """Creates the file that requests the ranks to stop, once the listener requests it."""

    def __init__(self, attempt: Path, listener: RunListener) -> None:
        self._attempt, self._listener, self.made = attempt, listener, False

    def tick(self) -> None:
        self._listener.tick()
        if not self.made and self._listener.stop_requested():
            (self._attempt / trial_folder.STOP).touch()
            self.made = True


def _ending(result: TrialResult, folder: Path) -> Ending | None:
    """Return the ending of a run after an attempt, by the last line of the ledger; None if the attempt failed."""
    last = (ledger.read(folder) or [{"event": ""}])[-1]
    if result.outcome != "completed" or last["event"] != ledger.ENDED:
        return None
    return Ending.FINISHED if last["finished"] else Ending.STOPPED
