"""Supervise the attempts of a user's own trainer: start it, follow the controller's decisions, and restart it.

A batch changes between two steps if the trainer can. Another layout is another attempt: the trainer saves and leaves, and resumes under the
launch line of the new layout, whose ranks may have started meanwhile (`early_start`). If the trainer dies before it has left, or the new
layout fails before its first step, the layout before resumes the newest checkpoint, and the new one is not tried again. A rank that dies or
hangs ends the attempt, and the next one resumes the newest checkpoint.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from pathlib import Path
from typing import Protocol

from oppa.control.own_trainer.attempt import OwnAttempt
from oppa.control.own_trainer.bounds import ChangeLimits, way_of
from oppa.control.own_trainer.checkpoint_record import CheckpointRecord, newest_record
from oppa.control.own_trainer.contract import Abilities, AttemptTerms, PlanTerms, StepReport
from oppa.control.own_trainer.early_start import MOST_S, EarlyStart, can_start_early
from oppa.control.own_trainer.run_book import EARLY_FAILED, LEFT_BADLY, RunBook
from oppa.errors import MeasurementError, TrainingError
from oppa.problem.configuration import Configuration
from oppa.training.run import ledger
from oppa.training.run.run_controller import ControllerDecision, RunController
from oppa.training.run.run_folder import ATTEMPTS, RunSpec, checkpoints, new_attempt
from oppa.training.run.supervision import FRUITLESS, Ending, Outcome, RunListener
from oppa.trials.launcher import Launcher
from oppa.trials.local import LocalLauncher
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.trial_folder import ATTEMPT, TrialSpec
from oppa.units import format_seconds


class OpenController(Protocol):
    """Connects a run to its control service, once the trainer has taken its first step."""

    def __call__(self, present: Configuration, able: Abilities, change_s: float) -> RunController | None:
        """Return the controller; None if the run has no policy.

        Args:
            present: The configuration of the first step.
            able: What the trainer can do.
            change_s: Expected seconds of a restart: those that the first start took.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _LayoutMove:
    """Holds a change of configuration by a restart, from the request to the first step in the new layout."""

    before: Configuration
    decision: ControllerDecision
    decided_s: float
    """Monotonic seconds of the decision."""
    asked_s: float = 0.0
    """Monotonic seconds at which the trainer was asked to leave; 0 before."""
    left_s: float = 0.0
    """Monotonic seconds at which it had left; 0 before."""

    def seconds(self, now_s: float) -> dict[str, float]:
        """Return the seconds that the trainer took to leave, and those of the start up to now."""
        if not self.left_s:
            return {"save": now_s - self.asked_s}
        return {"save": self.left_s - self.asked_s, "start": now_s - self.left_s}


class _OverError(Exception):
    """Ends an attempt whose trainer has left, but whose processes do not end."""


def supervise_own(
    launcher: Launcher, folder: Path, run: RunSpec, listener: RunListener, open_controller: OpenController, *, asked: Configuration | None
) -> Outcome:
    """Train until all samples were taken, a stop is requested, or the run is given up; no process is left running.

    Args:
        asked: The configuration that the user requests for the first attempt; None: that of the newest checkpoint, or of the run.

    Raises:
        StudyError: the folder cannot be written.
        CheckpointError: the record of a checkpoint is damaged.
    """
    with contextlib.ExitStack() as stack:
        book = stack.enter_context(contextlib.closing(RunBook(folder, run)))
        return stack.enter_context(contextlib.closing(_Supervisor(launcher, book, listener, open_controller))).train(asked)


class _Supervisor:
    """Runs attempts one after the other."""

    def __init__(self, launcher: Launcher, book: RunBook, listener: RunListener, open_controller: OpenController) -> None:
        self._launcher, self._book, self._listener, self._open = launcher, book, listener, open_controller
        self._folder, self._run = book.folder, book.run
        self._limits = ChangeLimits(book.run.problem.run_options)
        self._move: _LayoutMove | None = None
        """The change of layout in progress."""
        self._early: EarlyStart | None = None
        """Ranks of the new layout that wait until those of the present one have left."""
        self._failed: set[Configuration] = set()
        """Configurations to which a change has failed; the controller may have decided on one before it learned so."""
        self._undone: tuple[_LayoutMove, dict[str, float], str] | None = None
        """A change of layout that has failed, its seconds, and why; the next attempt returns to the layout before."""
        self._is_connected = self._is_last = False
        self._began_s = 0.0
        """Monotonic seconds at which the attempt began."""

    def train(self, asked: Configuration | None) -> Outcome:
        """Run attempts until one ends the run."""
        self._catch_up()
        fruitless, attempts = 0, 0
        while True:
            before, record = checkpoints(self._folder)[:1], newest_record(self._folder)
            attempt = self._new(record, asked)
            asked, attempts = None, attempts + 1
            self._listener.began(attempt.folder)
            result = self._supervised(attempt)
            ending = self._ending(attempt, result)
            if ending is None and result.outcome == "completed":  # it has left for another layout
                fruitless = 0
                continue
            if ending is None:
                self._listener.failed(attempt.folder, result)
                fruitless = 0 if checkpoints(self._folder)[:1] != before else fruitless + 1
                revoked = result.outcome == "interrupted"
                # a run that fails before its first step will fail again
                cannot_start = not revoked and record is None and not attempt.steps
                if self._undo(attempt, result) or (fruitless < FRUITLESS and not cannot_start and not self._is_last):
                    continue
                ending = Ending.REVOKED if revoked else Ending.FAILED
            return Outcome(ending=ending, attempts=attempts, last=result, folder=attempt.folder)

    def close(self) -> None:
        """End all ranks that are left."""
        self._drop_early()
        self._launcher.close()

    def _catch_up(self) -> None:
        """Write down what the trainer reported after an earlier process of oppa was killed."""
        attempts = (path.parent for path in (self._folder / ATTEMPTS).glob(f"[0-9]*/{ATTEMPT}") if path.parent.name.isdigit())
        last = max(attempts, key=lambda path: int(path.name), default=None)
        if last is None:
            return
        lines = ledger.standing(ledger.read(self._folder))
        steps = [line for line in lines if line["event"] == ledger.STEP]
        with contextlib.suppress(MeasurementError, TrainingError):  # what is damaged is lost, as after any failure
            if (terms := AttemptTerms.read(last)) is None or not lines or lines[-1]["event"] == ledger.ENDED:
                return
            self._book.resume(steps[-1] if steps else None)
            OwnAttempt(last, terms, self._book, seen=self._book.step).read()

    def _new(self, record: CheckpointRecord | None, asked: Configuration | None) -> OwnAttempt:
        """Prepare the folder of the next attempt."""
        options = self._run.problem.run_options
        configuration = self._configuration(record, asked)
        plan = PlanTerms.first(configuration, options) if record is None else record.plan
        if record is not None:
            plan = plan.resumed(configuration, number=plan.number + 1, step=record.step, samples=record.samples).under(options)
        terms = AttemptTerms(
            run=self._run.uuid,
            configuration=configuration,
            total_samples=options.samples,
            step=record.step if record else 0,
            samples=record.samples if record else 0,
            checkpoint=record.checkpoint if record else None,
            saved_by=record.configuration if record else None,
            plan=plan,
            leave_timeout_s=options.leave_timeout_s,
        )
        folder = self._prepared(terms)
        self._book.started(configuration, record)
        if self._undone is not None:  # noted after the start, which voids what was noted at its step before
            (move, seconds, failure), self._undone = self._undone, None
            self._book.changed(move.before, move.decision, seconds, failure)
        self._began_s = time.monotonic()
        return OwnAttempt(folder, terms, self._book, on_first=self._proved)

    def _prepared(self, terms: AttemptTerms) -> Path:
        """Return the folder of the next attempt: that of ranks that wait for its terms, or a new one."""
        if (early := self._early) is not None and self._move is not None and not self._has_early_failed(early):
            early.state(terms)
            return early.folder
        self._drop_early()
        folder = new_attempt(self._folder)
        terms.write(folder)
        return folder

    def _has_early_failed(self, early: EarlyStart) -> bool:
        """Return True if ranks that started early have ended, and write down why; a start of their own decides on the layout."""
        if failure := early.failure:
            self._book.note(EARLY_FAILED, failure=failure)
        return bool(failure)

    def _drop_early(self) -> None:
        """End ranks that wait; their folder stays only if it explains why they ended."""
        if (early := self._early) is not None:
            self._early, failed = None, bool(early.failure)
            early.close()
            if not failed:
                shutil.rmtree(early.folder, ignore_errors=True)

    def _configuration(self, record: CheckpointRecord | None, asked: Configuration | None) -> Configuration:
        """Return the configuration of the next attempt: that of the checkpoint, unless another one is asked for."""
        back = self._undone and self._undone[0].before
        if self._move is not None:
            return self._move.decision.configuration
        fitting = record is not None and record.configuration.devices == self._run.problem.cluster.devices
        return asked or back or (record.configuration if record is not None and fitting else self._run.configuration)

    def _supervised(self, attempt: OwnAttempt) -> TrialResult:
        """Run an attempt to its end; a trainer that contradicts its plan is ended."""
        problem, early, launcher = self._run.problem, self._early, self._launcher
        if early is not None:  # the ranks before have ended
            self._launcher.close()
            self._early, self._launcher, launcher = None, early.launcher, early
        try:
            result = run_trial(
                launcher,
                attempt.folder,
                self._spec(attempt.configuration, attempt.folder),
                limits=dataclasses.replace(problem.limits, trial_time_s=math.inf),
                on_step=self._listener.stepped,
                on_tick=lambda: self._tick(attempt),
                hang_s=problem.training.collective_timeout_s,
                prepared=early is not None,
            )
            attempt.read()
        except _OverError:
            return TrialResult(outcome="completed", seconds=time.monotonic() - self._began_s)
        except (TrainingError, MeasurementError) as error:
            self._is_last = self._is_last or isinstance(error, TrainingError)  # the trainer would do so again
            return TrialResult(outcome="failed", cause=_words(error), seconds=time.monotonic() - self._began_s)
        if result.outcome == "completed" and attempt.left is None:
            cause = f"the trainer ended after {attempt.step} steps without calling `run.leave`"
            return dataclasses.replace(result, outcome="failed", cause=cause)
        if attempt.left is not None and result.outcome not in ("completed", "interrupted"):  # its checkpoint is complete
            self._book.note(LEFT_BADLY, failure=result.cause)
            return dataclasses.replace(result, outcome="completed")
        return result

    def _spec(self, configuration: Configuration, folder: Path) -> TrialSpec:
        problem = self._run.problem.restored
        return TrialSpec.of(problem, configuration, study=self._run.uuid, trial=int(folder.name), steps=0)

    def _tick(self, attempt: OwnAttempt) -> None:
        self._listener.tick()
        attempt.read()
        self._require_start(attempt)
        attempt.require_answers()
        if attempt.left is not None:
            if time.monotonic() > attempt.left_s + attempt.terms.leave_timeout_s:
                raise _OverError
            return
        if not self._is_last and self._listener.stop_requested():
            self._is_last = True
            attempt.ask_to_leave("stop")
        elif attempt.is_asked or attempt.is_done:
            return
        elif self._move is not None and not self._move.asked_s:
            self._await_early(self._move, attempt)
        elif attempt.steps and self._book.controller is not None:
            decision = self._book.controller.wanted(attempt.configuration)
            if decision is not None:
                self._follow(decision, attempt)

    def _await_early(self, move: _LayoutMove, attempt: OwnAttempt) -> None:
        """Ask the trainer to leave once the ranks of the new layout wait, have failed, or take too long."""
        if self._early is not None and self._has_early_failed(self._early):
            self._drop_early()
        now_s = time.monotonic()
        if self._early is None or self._early.is_ready or now_s > move.decided_s + MOST_S:
            self._move = dataclasses.replace(move, asked_s=now_s)
            attempt.ask_to_leave("layout")

    def _require_start(self, attempt: OwnAttempt) -> None:
        """Raise MeasurementError, which another attempt may follow, if the trainer takes no first step."""
        limit_s = self._run.problem.limits.trial_time_s + self._run.problem.training.collective_timeout_s
        if not attempt.steps and time.monotonic() > self._began_s + limit_s:
            raise MeasurementError(f"the trainer took no step within {format_seconds(limit_s)} after its start")

    def _proved(self, attempt: OwnAttempt, first: StepReport) -> None:
        """Handle the first step of an attempt: a change of layout has succeeded, and the controller of the run can be connected."""
        now_s = time.monotonic()
        if (move := self._move) is not None:
            self._move = None
            self._book.changed(move.before, move.decision, move.seconds(now_s))
        if not self._is_connected and attempt.abilities is not None:
            self._is_connected = True
            self._book.controller = self._open(attempt.configuration, attempt.abilities, now_s - self._began_s)

    def _undo(self, attempt: OwnAttempt, result: TrialResult) -> bool:
        """Return True if a change of layout has failed with the attempt: the next one returns to the layout before."""
        move, self._move = self._move, None
        if move is None or not move.asked_s or self._is_last:
            return False
        self._failed.add(move.decision.configuration)
        failed = "resume in the new layout" if move.left_s else "save and leave for the new layout"
        self._undone = move, move.seconds(time.monotonic()), f"the trainer did not {failed}: {result.cause}"
        return True

    def _follow(self, decision: ControllerDecision, attempt: OwnAttempt) -> None:
        """Follow a decision as the trainer can, or write down why not."""
        present, book = attempt.configuration, self._book
        if decision.configuration in self._failed:
            return
        if decision.before_step is not None:
            book.note("not_rolled_back", failure="your own trainer does not restore earlier weights")
            return
        if self._run.problem.run_options.advise:
            book.advised(present, decision)
            return
        if why := self._limits.held_back(book.samples, book.elapsed_s):
            book.held_back(present, decision, why)
            return
        assert attempt.abilities is not None
        way = way_of(present, decision.configuration, attempt.abilities)
        if way is None:
            book.changed(present, decision, {}, f"the trainer cannot change so: {attempt.abilities.text}")
            return
        self._limits.changed(book.elapsed_s)
        if way == "live":
            attempt.ask(decision)
        else:
            self._move = _LayoutMove(before=present, decision=decision, decided_s=time.monotonic())
            self._early = self._started_early(attempt.abilities, decision.configuration)
            self._await_early(self._move, attempt)

    def _started_early(self, able: Abilities, configuration: Configuration) -> EarlyStart | None:
        """Start the ranks of a new layout; return None if that is not possible now."""
        if not (isinstance(self._launcher, LocalLauncher) and can_start_early(able, self._run.problem)):
            return None
        folder = new_attempt(self._folder)
        try:
            return EarlyStart(self._launcher, folder, self._spec(configuration, folder))
        except OSError as error:
            self._book.note(EARLY_FAILED, failure=str(error))
            return None

    def _ending(self, attempt: OwnAttempt, result: TrialResult) -> Ending | None:
        """Return the ending of the run after an attempt; None if another attempt follows."""
        if result.outcome != "completed" or attempt.left is None:
            return None
        if attempt.left.reason == "layout" and self._move is not None and not self._is_last:
            self._move = dataclasses.replace(self._move, left_s=time.monotonic())
            return None
        finished = attempt.left.reason == "finished"
        self._book.ended(finished=finished)
        return Ending.FINISHED if finished else Ending.STOPPED


def _words(error: TrainingError | MeasurementError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
