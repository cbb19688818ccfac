"""A run as it is supervised from outside: its ranks are started, and after a failure started again, from the newest checkpoint.

What of it survives what: a rank that dies takes the others down within seconds, and the attempt with them; checkpoints lie on disk,
whole or not at all; whoever supervises may be killed, too, and the same command goes on.
"""

import dataclasses
import enum
import math
from pathlib import Path

from oppa.training import ledger
from oppa.training.run_folder import RunSpec, checkpoints, new_attempt
from oppa.trials import wire
from oppa.trials.launcher import Launcher
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.wire import Measurement, TrialSpec

FRUITLESS = 3
"""Attempts in a row that may end without a new checkpoint, before the run is given up."""


class Ending(enum.Enum):
    """How supervision ended."""

    FINISHED = "finished"
    """All samples were seen, and the state is saved."""
    STOPPED = "stopped"
    """It was asked to stop; the state is saved."""
    FAILED = "failed"
    """No attempt came any further."""
    REVOKED = "revoked"
    """The devices were taken away."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended for now."""

    ending: Ending
    attempts: int
    last: TrialResult
    folder: Path
    """Of the last attempt."""


class Listener:
    """Hears of a run's attempts; a base whose methods do nothing."""

    def began(self, attempt: Path) -> None:
        """The ranks are started."""

    def stepped(self, measurement: Measurement) -> None:
        """An optimizer step was taken."""

    def failed(self, attempt: Path, result: TrialResult) -> None:
        """An attempt failed; another one may follow."""

    def tick(self) -> None:
        """Time passes; what is raised here ends the ranks at once, and is passed on."""

    def stop_requested(self) -> bool:
        """Whether to end at the next step boundary; asked at every tick."""
        return False


def supervise(launcher: Launcher, folder: Path, run: RunSpec, listener: Listener) -> Outcome:
    """Train until all samples were seen, or it is stopped, or given up; nothing is left running.

    Raises:
        StudyError: if the folder cannot be written.
    """
    fruitless, attempts = 0, 0
    while True:
        before, attempt, attempts = checkpoints(folder)[:1], new_attempt(folder), attempts + 1
        listener.began(attempt)
        asked = _Stop(attempt, listener)
        result = run_trial(
            launcher,
            attempt,
            # How many steps it takes is not known beforehand; as many as there are will do.
            TrialSpec.of(run.problem, run.configuration, study=run.uuid, trial=int(attempt.name), steps=0),
            limits=dataclasses.replace(run.problem.limits, trial_time_s=math.inf),
            on_step=listener.stepped,
            on_tick=asked.tick,
            # Between two steps a checkpoint or a change of layout may come: ranks that wait for each other longer than this hang.
            hang_s=run.problem.training.collective_timeout_s,
        )
        ending = _ending(result, folder)
        if ending is None:
            listener.failed(attempt, result)
            fruitless = 0 if checkpoints(folder)[:1] != before else fruitless + 1
            hopeless = not before and not result.steps  # what fails before it has ever trained will fail again
            if fruitless < FRUITLESS and not hopeless and not asked.made:
                continue
            ending = Ending.FAILED
        return Outcome(ending=ending, attempts=attempts, last=result, folder=attempt)


class _Stop:
    """Makes the file that asks the ranks to stop, once, when the listener wants it."""

    def __init__(self, attempt: Path, listener: Listener) -> None:
        self._attempt, self._listener, self.made = attempt, listener, False

    def tick(self) -> None:
        self._listener.tick()
        if not self.made and self._listener.stop_requested():
            (self._attempt / wire.STOP).touch()
            self.made = True


def _ending(result: TrialResult, folder: Path) -> Ending | None:
    """What an attempt's end means to the run, by the ranks' own last word in the ledger; None if it failed."""
    if result.outcome == "interrupted":
        return Ending.REVOKED
    last = (ledger.read(folder) or [{"event": ""}])[-1]
    if result.outcome != "completed" or last["event"] != ledger.ENDED:
        return None
    return Ending.FINISHED if last["finished"] else Ending.STOPPED
