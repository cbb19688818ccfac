"""Supervise the attempts of a user's own trainer: start it, follow the controller's decisions, and restart it.

A batch changes between two steps if the trainer can. Another layout is another attempt: the trainer saves and leaves, and resumes under the
launch line of the new layout. Its ranks may have started meanwhile (`early_start`). The trainer may die before it has left, or soon after a
change (`failed_change`). Then the former configuration resumes the newest checkpoint, and the new one is not tried again. A rank that dies
or hangs ends the attempt. The next one resumes the newest checkpoint, or an earlier one if that is unreadable (`resumption`).

A request for another number of hosts is a change of layout, too (`resizing`). Ranks start on granted hosts while the present ones train. If
the hosts are refused, the present ranks train on. If ranks cannot start so, the run saves and stops, for the next process to begin on the
requested hosts.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

from oppa.control.own_trainer.attempt import PREEMPTION, OwnAttempt
from oppa.control.own_trainer.catch_up import catch_up
from oppa.control.own_trainer.checkpoint_record import CheckpointRecord
from oppa.control.own_trainer.contract import Abilities, AttemptTerms, PlanTerms
from oppa.control.own_trainer.failed_change import FailedChange, failed_change
from oppa.control.own_trainer.layout_move import LayoutMove
from oppa.control.own_trainer.rank_launchers import RankLaunchers, spec_of
from oppa.control.own_trainer.resizing import Resizing
from oppa.control.own_trainer.resumption import Resumption
from oppa.control.own_trainer.run_book import LEFT_BADLY, RESTARTED, RunBook, written
from oppa.control.reach import outside, way_of
from oppa.errors import MeasurementError, TrainingError
from oppa.launchers.elastic_hosts import ElasticHosts
from oppa.problem.configuration import Configuration
from oppa.training.run import ledger
from oppa.training.run.resize import ResizeRequest
from oppa.training.run.run_controller import ControllerDecision, RunController
from oppa.training.run.run_folder import RunSpec, new_attempt
from oppa.training.run.supervision import Attempts, Ending, Outcome, RunListener
from oppa.trials.launcher import Launcher
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.untrusted_file import insist

ENDING_S = 30.0
"""Most seconds in which ranks end that have left for another layout, whose ranks wait; on a loaded machine the end of Python takes long."""


OpenController = Callable[[Configuration, Abilities, float], RunController | None]
"""Connects a run to its control service after its trainer's first step; returns None if the run has no policy.

Its arguments: the configuration of that step, what the trainer can do, and the expected seconds of a restart, which the first start took.
"""


class _OverError(Exception):
    """Ends an attempt whose trainer has left, but whose processes do not end."""


def supervise_own(
    launcher: Launcher,
    folder: Path,
    run: RunSpec,
    listener: RunListener,
    open_controller: OpenController,
    *,
    asked: Configuration | None,
    hosts: ElasticHosts | None = None,
) -> Outcome:
    """Train until all samples were taken, a stop is requested, or the run is given up; no process is left running.

    Args:
        asked: The configuration that the user requests for the first attempt; None: that of the newest checkpoint, or of the run.
        hosts: Hosts of the launcher; None for this host.

    Raises:
        StudyError: the folder of an attempt cannot be written.
        EnvironmentLackingError: the ledger cannot be written.
        CheckpointError: the record of a checkpoint is damaged.
    """
    with contextlib.ExitStack() as stack:
        book = stack.enter_context(contextlib.closing(RunBook(folder, run)))
        resizing = Resizing(folder, hosts, run.problem.cluster.hosts)
        supervisor = _Supervisor(launcher, book, listener, open_controller, resizing)
        return stack.enter_context(contextlib.closing(supervisor)).train(asked)


class _Supervisor:
    """Runs attempts one after the other."""

    def __init__(
        self, launcher: Launcher, book: RunBook, listener: RunListener, open_controller: OpenController, resizing: Resizing
    ) -> None:
        self._book, self._listener, self._open, self._resizing = book, listener, open_controller, resizing
        self._ranks = RankLaunchers(launcher, book, resizing)
        self._resumption = Resumption(book)
        self._folder, self._run = book.folder, book.run
        self._move: LayoutMove | None = None
        """The change of layout in progress."""
        self._begun: LayoutMove | None = None
        """The change of layout with which the present attempt began; None before its first step."""
        self._failed = dict[Configuration, Configuration]()
        """Configurations to which a change has failed, with those before; the controller may have decided on one before it learned so."""
        self._undone: FailedChange | None = None
        """A change from which the next attempt returns."""
        self._last_step_at: float | None = None
        """Unix time of the last step of an earlier process; None without one, and after the first step of this process."""
        self._is_connected = self._is_last = False
        self._began_s = 0.0
        """Monotonic seconds at which the attempt began."""
        self._start_s = 0.0
        """Seconds from the beginning of the attempt to its first step."""

    def train(self, asked: Configuration | None) -> Outcome:
        """Run attempts until one ends the run."""
        self._last_step_at = catch_up(self._book)
        attempts = Attempts(self._folder)
        while True:
            attempts.begin()
            record, is_usual = self._resumption.choose(), asked is None and self._move is None
            attempt, asked = self._new(record, asked), None
            self._listener.began(attempt.folder)
            result = self._supervised(attempt)
            ending = self._ending(attempt, result)
            if ending is None and result.outcome == "completed":  # it has left for another layout
                attempts.forget_failures()
            elif ending is None:
                ending = attempts.failed(result, has_trained=record is not None or attempt.steps > 0, is_last=self._is_last)
                if self._undo(attempt, result) or (is_usual and self._goes_back(attempt, result)):
                    attempts.forget_failures()
                    ending = None
                self._listener.failed(attempt.folder, result, goes_on=ending is None)
            if ending is not None:
                last = self._resumption.explained(result)
                return Outcome(ending=ending, attempts=attempts.count, last=last, folder=attempt.folder)

    def close(self) -> None:
        """End all ranks that are left."""
        self._ranks.close()

    def _new(self, record: CheckpointRecord | None, asked: Configuration | None) -> OwnAttempt:
        """Prepare the folder of the next attempt."""
        options = self._run.problem.run_options
        configuration = self._configuration(record, asked)
        self._take_hosts()
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
            statistics_every=options.statistics_every,
            leave_timeout_s=options.leave_timeout_s,
        )
        folder = self._folder_for(terms)
        self._book.hosts = self._ranks.hosts
        self._resumption.begin(configuration)
        if self._undone is not None:  # noted after the start, which voids what was noted at its step before
            undone, self._undone = self._undone, None
            self._book.changed(undone.before, undone.decision, undone.seconds, undone.failure)
            if undone.resize is not None:
                self._resizing.refuse(undone.resize, undone.failure, excused=undone.is_revoked)
        self._began_s, self._begun = time.monotonic(), None
        return OwnAttempt(folder, terms, self._book, on_first=self._proved)

    def _folder_for(self, terms: AttemptTerms) -> Path:
        """Return the folder of the next attempt: that of ranks that wait for its terms, or a new one."""
        if (early := self._ranks.early) is not None and self._move is not None and not self._ranks.note_early_failure():
            early.state(terms)
            return early.folder
        self._ranks.drop_early()
        if self._move is not None and self._move.resize is not None:
            self._ranks.move()
        folder = new_attempt(self._folder)
        with written(folder):
            insist(lambda: terms.write(folder))
        return folder

    def _take_hosts(self) -> None:
        """Take the hosts on which the next attempt trains: those of a request, or after its failure those before."""
        undone = self._undone.move if self._undone is not None else None
        if self._move is not None and self._move.resize is not None:
            self._run = self._move.after
        elif undone is not None and self._run is not undone.run:
            self._run = undone.run
        else:
            return
        self._run.write(self._folder)
        self._resizing.began(self._run.problem.cluster.hosts)
        if undone is not None:
            self._ranks.move()

    def _configuration(self, record: CheckpointRecord | None, asked: Configuration | None) -> Configuration:
        """Return the configuration of the next attempt: that of the checkpoint, unless another one is asked for, or it has failed."""
        back = self._undone and self._undone.before
        if self._move is not None:
            return self._move.decision.configuration
        fitting = record is not None and record.configuration.devices == self._run.problem.cluster.devices
        present = record.configuration if record is not None and fitting else self._run.configuration
        return asked or back or self._failed.get(present, present)

    def _supervised(self, attempt: OwnAttempt) -> TrialResult:
        """Run an attempt to its end; a trainer that contradicts its plan is ended."""
        problem, prepared = self._run.problem, self._ranks.early is not None
        try:
            result = run_trial(
                self._ranks.take_over(),
                attempt.folder,
                spec_of(dataclasses.replace(self._run, configuration=attempt.configuration), int(attempt.folder.name)),
                limits=dataclasses.replace(problem.limits, trial_time_s=math.inf),
                on_step=self._listener.stepped,
                on_tick=lambda: self._tick(attempt),
                on_start=attempt.started,
                hang_s=problem.training.collective_timeout_s,
                prepared=prepared,
            )
            attempt.read_last()
        except _OverError:
            return TrialResult(outcome="completed", seconds=time.monotonic() - self._began_s)
        except (TrainingError, MeasurementError) as error:
            self._is_last = self._is_last or isinstance(error, TrainingError)  # the trainer would do so again
            return TrialResult(outcome="failed", cause=_words(error), seconds=time.monotonic() - self._began_s)
        finally:
            self._ranks.end_former()
        if result.outcome == "completed" and attempt.left is None:
            cause = f"the trainer ended after {attempt.step} steps without calling `run.leave`"
            return dataclasses.replace(result, outcome="failed", cause=cause)
        if attempt.left is not None and result.outcome not in ("completed", "interrupted"):  # its checkpoint is complete
            self._book.note(LEFT_BADLY, failure=result.cause)
            return dataclasses.replace(result, outcome="completed")
        return result

    def _tick(self, attempt: OwnAttempt) -> None:
        self._listener.tick()
        self._ranks.end_former()
        attempt.read()
        attempt.require_start(self._run.problem.limits.trial_time_s + self._run.problem.training.collective_timeout_s)
        if (frozen_from := attempt.missed) is not None:
            self._withdraw(attempt, self._book.limits.frozen(frozen_from))
        attempt.require_answers()
        if attempt.left is not None:
            limit_s = attempt.leave_limit_s
            if time.monotonic() > attempt.left_s + (min(limit_s, ENDING_S) if attempt.left.reason == "layout" else limit_s):
                raise _OverError
            return
        if not self._is_last and self._listener.stop_requested():
            self._stop(attempt)
        elif attempt.is_asked or attempt.is_done:
            return
        elif self._move is not None and not self._move.asked_s:
            self._await_early(self._move, attempt)
        elif attempt.steps and (request := self._resizing.request) is not None:
            self._resize(request, attempt)
        elif attempt.steps and self._book.controller is not None:
            if (decision := self._book.controller.wanted(attempt.configuration)) is not None:
                self._follow(decision, attempt)
            elif self._book.controller.stays:
                self._book.advice_withdrawn()

    def _stop(self, attempt: OwnAttempt) -> None:
        self._is_last = True
        attempt.ask_to_leave(PREEMPTION if self._listener.is_preempted() else "stop")

    def _resize(self, request: ResizeRequest, attempt: OwnAttempt) -> None:
        """Start ranks on the requested number of hosts; if that is not possible while this run trains, stop it."""
        able = attempt.abilities
        assert able is not None
        decision = ControllerDecision(configuration=request.configuration, reason=f"{request.hosts} hosts were requested")
        move = LayoutMove(before=attempt.configuration, run=self._run, decision=decision, resize=request)
        can_follow = self._book.controller is None and self._resizing.can_follow(request, self._run)
        if able.restart and able.elastic and can_follow and self._ranks.start_early(able, move.after):
            self._move = move
        else:
            self._stop(attempt)

    def _await_early(self, move: LayoutMove, attempt: OwnAttempt) -> None:
        """Ask the trainer to leave once the ranks of the new layout wait, have failed, or take too long."""
        if move.resize is None:
            if why := self._book.frozen:
                self._withdraw(attempt, why)
                return
        elif not self._goes_on(move.resize, attempt):
            return
        if self._ranks.note_early_failure():
            self._ranks.drop_early()
        early = self._ranks.early
        # Hosts that are returned are needed by others, who do not wait for imports.
        if early is None or early.is_ready or early.is_late or (move.shrinks and early.has_started):
            self._move = dataclasses.replace(move, asked_s=time.monotonic())
            attempt.ask_to_leave("layout", before=self._book.frozen_from if move.resize is None else None)

    def _withdraw(self, attempt: OwnAttempt, why: str) -> None:
        """Hold back a change that was decided, but that would begin too late."""
        decision = attempt.withdraw()
        if self._move is not None:
            decision, self._move = self._move.decision, None
            self._ranks.drop_early()
        if decision is not None:
            self._book.held_back(attempt.configuration, decision, why)

    def _goes_on(self, resize: ResizeRequest, attempt: OwnAttempt) -> bool:
        """Return False if a change of the number of hosts has been withdrawn, or has failed before the trainer was asked to leave."""
        early, request = self._ranks.early, self._resizing.request
        assert early is not None
        if request is not None and request.id == resize.id and not self._ranks.note_early_failure():
            return True
        refusal, failure, excused = early.refusal, early.failure, early.has_started
        self._ranks.drop_early()
        self._move = None
        if refusal:
            self._resizing.refuse(resize, refusal, excused=excused)
        elif failure:  # perhaps its ranks cannot start while others run
            self._stop(attempt)
        return False

    def _proved(self, attempt: OwnAttempt) -> None:
        """Handle the first step of an attempt: a change of layout has succeeded, and the controller of the run can be connected."""
        now_s = time.monotonic()
        self._start_s = now_s - self._began_s
        self._resumption.proved(attempt.configuration)
        self._book.placed(self._ranks.present.hosts)
        if (move := self._move) is not None:
            self._move, self._begun = None, dataclasses.replace(move, stepped_s=now_s)
            self._book.changed(move.before, move.decision, move.seconds(now_s))
        elif self._last_step_at is not None:
            self._book.note(RESTARTED, seconds={"restart": max(0.0, time.time() - self._last_step_at)})
        self._last_step_at = None
        if not self._is_connected and attempt.abilities is not None:
            self._is_connected = True
            self._book.controller = self._open(attempt.configuration, attempt.abilities, self._start_s)

    def _goes_back(self, attempt: OwnAttempt, result: TrialResult) -> bool:
        """Return True if an attempt has failed before its first step, and an earlier checkpoint comes next."""
        may_be_unreadable = not attempt.steps and not self._is_last and result.outcome != "interrupted"
        return may_be_unreadable and self._resumption.failed(result.cause)

    def _undo(self, attempt: OwnAttempt, result: TrialResult) -> bool:
        """Return True if a change has failed with the attempt: the next one returns to the configuration before."""
        move, self._move = self._move, None
        undone = None if self._is_last else failed_change(attempt, result, move=move, begun=self._begun)
        if undone is None or (undone.move and not self._resizing.can_return(undone.move.run.problem.cluster.hosts)):
            return False
        self._undone = undone
        if undone.resize is None:
            self._failed[undone.decision.configuration] = undone.before
        return True

    def _follow(self, decision: ControllerDecision, attempt: OwnAttempt) -> None:
        """Follow a decision as the trainer can, or write down why not."""
        present, book = attempt.configuration, self._book
        if decision.configuration in self._failed:
            return
        if decision.before_step is not None:
            book.note(ledger.NOT_ROLLED_BACK, failure="your own trainer does not restore earlier weights")
            return
        assert attempt.abilities is not None
        options = self._run.problem.run_options
        reach = attempt.abilities.reach(options)
        if why := outside(decision.configuration, reach) or book.limited(decision):
            book.held_back(present, decision, why)
            return
        way = way_of(present, decision.configuration, reach)
        if options.advise:
            book.advised(present, decision, self._start_s if way == "restart" else 0.0)
            return
        if way is None:
            book.changed(present, decision, {}, f"the trainer cannot change so: {reach.text}")
            return
        if way == "live":
            attempt.ask(decision, before=book.frozen_from)
        else:
            self._move = LayoutMove(before=present, run=self._run, decision=decision)
            self._ranks.start_early(attempt.abilities, self._move.after)
            self._await_early(self._move, attempt)

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
