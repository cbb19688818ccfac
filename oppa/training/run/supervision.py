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
    """Names the way in which supervision ended."""

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
    """Holds the result of supervision; the run may be resumed later."""

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

    def failed(self, attempt: Path, result: TrialResult, *, goes_on: bool) -> None:
        """Handle a failed attempt; another one follows if the run goes on."""

    def tick(self) -> None:
        """Handle the periodic tick; an exception ends the ranks at once and propagates."""

    def stop_requested(self) -> bool:
        """Return whether to end at the next step boundary; called at every tick until it returns true."""
        return False

    def is_preempted(self) -> bool:
        """Return whether the requested stop is a pre-emption, after which the site ends all processes."""
        return False


class Attempts:
    """Counts the attempts at a run, and decides when the run is given up.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.count = 0
        self._fruitless = 0
        self._newest = checkpoints(folder)[:1]

    def begin(self) -> None:
        """Count an attempt that begins."""
        self.count, self._newest = self.count + 1, checkpoints(self._folder)[:1]

    def forget_failures(self) -> None:
        """Count failures anew: an attempt has reached its end, or the next one resumes an earlier checkpoint."""
        self._fruitless = 0

    def failed(self, result: TrialResult, *, has_trained: bool, is_last: bool) -> Ending | None:
        """Return the ending of the run after a failed attempt; None if another one may follow.

        Args:
            has_trained: The run has a checkpoint, or the attempt took a step; a run that fails before its first step will fail again.
            is_last: A stop was requested.
        """
        self._fruitless = 0 if checkpoints(self._folder)[:1] != self._newest else self._fruitless + 1
        revoked = result.outcome == "interrupted"
        if self._fruitless < FRUITLESS and (revoked or has_trained) and not is_last:
            return None
        return Ending.REVOKED if revoked else Ending.FAILED


def supervise(launcher: Launcher, folder: Path, run: RunSpec, listener: RunListener) -> Outcome:
    """Train until all samples were seen, a stop is requested, or the run is given up; no process is left running.

    Raises:
        StudyError: if the folder cannot be written.
    """
    attempts = Attempts(folder)
    while True:
        attempts.begin()
        resumes, attempt = bool(checkpoints(folder)), new_attempt(folder)
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
            ending = attempts.failed(result, has_trained=resumes or result.steps > 0, is_last=stop.made)
            listener.failed(attempt, result, goes_on=ending is None)
        if ending is not None:
            return Outcome(ending=ending, attempts=attempts.count, last=result, folder=attempt)


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
    last = ledger.last(folder)
    if result.outcome != "completed" or last is None or last["event"] != ledger.ENDED:
        return None
    return Ending.FINISHED if last["finished"] else Ending.STOPPED
