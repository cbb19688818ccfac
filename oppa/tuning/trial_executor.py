"""Run the trials of a study that this process has leased, and record how they end."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from oppa.errors import LeaseLostError, OppaError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Lease, Study, Trial
from oppa.study.records import MEASURED
from oppa.trials.launcher import LOST
from oppa.trials.monitor import StopRule
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import Measurement, TrialSpec
from oppa.tuning import repeated_failures
from oppa.tuning.device_budget import DeviceBudget

RENEW_EVERY_S = 10.0
WAIT_S = 0.1
LOSSES = 3
"""Trials of a configuration in a row that lose a host, after which it has failed: it may be what starves its hosts."""


class SearchCallback(Protocol):
    """Receives the events of a search. `tick` is called many times a second, and may raise to interrupt the trial."""

    def started(self, lease: Lease) -> None:
        """Handle the start of a trial."""

    def stepped(self, measurement: Measurement) -> None:
        """Handle an optimizer step of the running trial."""

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Handle the end of a trial, which is on disk by now."""

    def tick(self) -> None:
        """Handle the passing of time."""


class RunTrial(Protocol):
    """Runs one trial to its end: `run_trial` with a launcher, or a simulation of it."""

    def __call__(
        self,
        folder: Path,
        spec: TrialSpec,
        *,
        limits: Limits,
        stop_rule: StopRule | None,
        on_step: Callable[[Measurement], None],
        on_tick: Callable[[], None],
    ) -> TrialResult:
        """Run the trial in `folder`. An exception that `on_tick` raises ends the trial and propagates."""


class TrialExecutor:
    """Runs the trials that this process has leased, and records their outcomes, interruptions included."""

    def __init__(
        self,
        study: Study,
        problem: Problem,
        run_trial: RunTrial,
        watcher: SearchCallback,
        *,
        simulated: bool = False,
        is_alone: bool = False,
        budget: DeviceBudget | None = None,
    ) -> None:
        """Begin a session of this process on a study.

        Args:
            simulated: Trials are simulated and take no real time, so their simulated seconds count against a time budget.
            is_alone: Trials run on real devices, which no parallel tuner of the study slows down.
            budget: The study's GPU-hours, as this tuner applies them; None: those of the problem's limits, with trials that end at once.
        """
        self.study = study
        self.budget = budget or DeviceBudget(problem=problem, study=study, ending_s=0.0)
        self.problem = problem
        self._run_trial = run_trial
        self._watcher = watcher
        self._simulated, self.is_alone = simulated, is_alone
        earlier = study.trials()
        self._earlier = {trial.id for trial in earlier}
        self.mended = {trial.id for trial in ([] if simulated else self._repeated(earlier, earlier))}
        """Trials that ended the previous session because they failed in the same way; their configurations may run by now."""

    def spent_s(self) -> float:
        """Return the seconds that the search took so far, over all sessions."""
        return sum(trial.seconds for trial in self.study.trials()) if self._simulated else self.study.spent_s()

    def is_cold(self, counted: Sequence[Trial]) -> bool:
        """Return True if no trial has filled the caches of the program: there is none but those that ran out of memory."""
        return not self._simulated and all(trial.outcome == "out_of_memory" for trial in counted)

    def run(self, lease: Lease, *, stop_rule: StopRule | None = None, trial_time_s: float | None = None) -> TrialResult | None:
        """Run a leased trial to its end, or until its stop rule ends it; None if another tuner took it over meanwhile.

        Raises:
            BaseException: whatever `tick` raises, after all processes of the trial are gone and it is recorded as interrupted.
        """
        limits, limit_s = self.problem.limits, trial_time_s or self.problem.limits.trial_time_s
        if lease.granted_s is not None:
            limit_s = min(limit_s, lease.granted_s - self.budget.ending_s)
        try:
            self._watcher.started(lease)
            result = self._run_trial(
                self.study.trial_folder(lease),
                TrialSpec.of(self.problem, lease.configuration, study=self.study.uuid, trial=lease.trial, steps=limits.q_max),
                limits=dataclasses.replace(limits, trial_time_s=limit_s),
                stop_rule=stop_rule,
                on_step=self._watcher.stepped,
                on_tick=self._heartbeat(lease),
            )
            cut = limit_s < (trial_time_s or limits.trial_time_s) and result.seconds >= limit_s
            if cut and result.outcome in ("timed_out", "failed"):
                result = dataclasses.replace(result, outcome="interrupted", cause=self.budget.spent_in_words())
            if result.cause.startswith(LOST) and (losses := 1 + self._losses(lease.configuration)) >= LOSSES:
                cause = f"{result.cause}; {losses} trials of this configuration in a row lost a host"
                result = dataclasses.replace(result, outcome="failed", cause=cause)
            self.study.finish(lease, result)
        except LeaseLostError:
            with contextlib.suppress(OppaError):  # the study cannot be written, and the next step reports it
                self.study.record_lost(lease)
            return None
        except BaseException as reason:
            with contextlib.suppress(OppaError):  # it has ended already, or the disk is full: a later start recovers the lease
                self.study.interrupt(lease, "interrupted by the user" if isinstance(reason, KeyboardInterrupt) else f"aborted: {reason}")
            raise
        self._watcher.ended(lease, result)
        return result

    def own(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that ended in this session."""
        return [trial for trial in trials if trial.id not in self._earlier]

    def failing_repeatedly(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the last trials of this session if enough of them failed in the same way before their first step; none if simulated.

        Raises:
            RepeatedFailureError: if no trial of the study has taken a step, either.
        """
        failures = [] if self._simulated else self._repeated(self.own(trials), trials)
        if failures and not any(trial.step_times_s for trial in trials):
            raise repeated_failures.error(failures, self.study, self.problem)
        return failures

    def _losses(self, configuration: Configuration) -> int:
        """Return how many trials of a configuration have lost a host since one was measured."""
        own = (trial for trial in reversed(self.study.trials()) if trial.configuration == configuration)
        return sum(trial.cause.startswith(LOST) for trial in itertools.takewhile(lambda trial: trial.outcome not in MEASURED, own))

    def _repeated(self, recent: Sequence[Trial], known: Sequence[Trial]) -> list[Trial]:
        return repeated_failures.repeated(recent, known, command=self.problem.command is not None)

    def wait(self) -> None:
        """Wait for a moment, in which other tuners of this study work."""
        self._watcher.tick()
        time.sleep(WAIT_S)

    def _heartbeat(self, lease: Lease) -> Callable[[], None]:
        due = time.monotonic() + RENEW_EVERY_S

        def tick() -> None:
            nonlocal due
            self._watcher.tick()
            if time.monotonic() >= due:
                due = time.monotonic() + RENEW_EVERY_S
                self.study.renew(lease, ending_s=self.budget.ending_s)

        return tick
