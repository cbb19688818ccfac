"""Runs the search: suggest, run and record trials until a budget is spent or nothing is left to try.

Several processes may search one study at once. The study's leases keep them apart, and its trials are the state they share.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from oppa.errors import LeaseLostError, OppaError
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Lease, Study, Trial
from oppa.study.records import DRIFT, SEARCH, VERIFICATION
from oppa.trials.monitor import StopRule
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import Measurement, TrialSpec
from oppa.tuning import repeated_failures
from oppa.tuning.designer import Designer, Observation, Restated, incumbent
from oppa.tuning.device_budget import DeviceBudget, worthwhile_s
from oppa.tuning.drift import drift_of, is_due
from oppa.tuning.stopping import StopTest, against
from oppa.tuning.time_limit import time_limit_s
from oppa.units import format_seconds

Reserve = Callable[[Sequence[Trial]], float]
"""A function of the trials so far. It returns the seconds that later trials, such as verification, need."""
RENEW_EVERY_S = 10.0
WAIT_S = 0.1


class SearchCallback(Protocol):
    """Receives the events of a search. `tick` is called many times a second, and may raise to interrupt the trial."""

    def started(self, lease: Lease) -> None:
        """Handle the start of a trial."""
        ...

    def stepped(self, measurement: Measurement) -> None:
        """Handle an optimizer step of the running trial."""
        ...

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Handle the end of a trial, which is on disk by now."""
        ...

    def tick(self) -> None:
        """Handle the passing of time."""
        ...


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
        ...


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
                self.study.renew(lease)

        return tick


def search(
    executor: TrialExecutor,
    candidates: Candidates,
    designer: Designer,
    rule: StopTest,
    *,
    reserve: Reserve = lambda _: 0.0,
    watches_drift: bool = False,
) -> str:
    """Run search trials until the budget is spent and no tuner runs one. Return in a few words what ended the search.

    Args:
        reserve: Seconds of the devices that the search leaves for later trials.
        watches_drift: Repeat the incumbent now and then, to tell a drift of the machine from differences between configurations.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
    """
    study, limits, learned = executor.study, executor.problem.limits, dict[int, float]()
    while True:
        study.recover()
        running = [lease for lease in study.running() if lease.purpose == SEARCH]
        every = study.trials()
        failures = executor.failing_repeatedly(every)
        counted = [trial for trial in every if trial.counts and trial.purpose != VERIFICATION]
        trials = [trial for trial in counted if trial.id not in executor.mended]
        reason = repeated_failures.in_words(failures) if failures else spent(executor, len(searched(counted)) + len(running))
        drift = drift_of(counted).offsets if watches_drift else {}
        offsets = {trial.id: drift.get(trial.id, 0.0) for trial in trials}
        seen = [Observation.of(trial, candidates, offset=offsets[trial.id]) for trial in trials]
        _teach(designer, seen, offsets, learned)
        taken = {observation.candidate for observation in seen} | {candidates.index_of(lease.configuration) for lease in running}
        may_repeat = watches_drift and not failures and not running and not spent(executor, 0)  # repeats are none of `limits.trials`
        purpose, candidate = SEARCH, None
        if may_repeat and (again := _again(executor, seen, counted, ending=bool(reason))) is not None:
            purpose, candidate = DRIFT, again
        elif not reason:
            candidate = next_candidate(executor.problem, candidates, designer, taken)
            if candidate is None and may_repeat:
                purpose, candidate = DRIFT, _again(executor, seen, counted, ending=True)
        prediction = None if candidate is None else designer.predict(candidate)
        limit_s = time_limit_s(prediction, trials, limits, cold=executor.is_cold(counted))
        steps_s = worthwhile_s(prediction, every, executor.problem)
        kept_s = 0.0 if executor.budget.total_s is None else reserve(every)
        request = executor.budget.request(every, most_s=limit_s, steps_s=steps_s, reserved_s=kept_s)
        if candidate is not None and not executor.budget.allows(request):
            candidate, reason = None, executor.budget.spent_in_words()
        if candidate is not None:
            configuration = candidates.configuration(candidate)
            tried = sum(trial.configuration == configuration for trial in searched(counted))
            lease = study.claim(configuration, purpose=purpose, tried=tried, prediction=prediction, limit=limits.trials, budget=request)
            if lease is None:
                executor.wait()  # another tuner was faster: choose again, given its trials
            else:
                executor.run(lease, stop_rule=against(rule, seen) if purpose == SEARCH else None, trial_time_s=limit_s)
        elif running and not executor.budget.must_release():  # their tuner may die, and this one must then finish the search
            executor.wait()
        else:
            return reason or _exhausted(len(taken), len(candidates))


def _teach(designer: Designer, seen: Sequence[Observation], offsets: Mapping[int, float], learned: dict[int, float]) -> None:
    """Pass the observations of trials that the designer has not learned; all of them if the drift of those that it has is another now.

    Args:
        offsets: Drift that was taken off each observation, by the trial's number.
        learned: The same of the observations that the designer has; updated.
    """
    new = [observation for trial, observation in zip(offsets, seen, strict=True) if trial not in learned]
    changed = any(offsets.get(trial, offset) != offset for trial, offset in learned.items())
    if changed and isinstance(designer, Restated):
        designer.restate(seen)
    elif new:
        designer.update(new)
    learned |= offsets


def _again(executor: TrialExecutor, seen: Sequence[Observation], counted: Sequence[Trial], *, ending: bool) -> int | None:
    """Return the incumbent if it is to run again, to show a drift of the machine; else None."""
    best, own = incumbent(seen), executor.own(counted)
    if not own or best is None:  # a finished search may have been opened again
        return None
    if any(lease.purpose == DRIFT for lease in executor.study.running()):
        return None
    is_resumed = len(own) < len(counted) and not any(trial.purpose == DRIFT for trial in own)
    return best[0] if is_due(counted, resumed=is_resumed and not ending, ending=ending) else None


def next_candidate(problem: Problem, candidates: Candidates, designer: Designer, taken: Set[int]) -> int | None:
    """Return the next candidate: the user's present configuration first, whatever the designer; None if none is left."""
    if problem.baseline is not None and (baseline := candidates.index_of(problem.baseline)) not in taken:
        return baseline
    return designer.suggest(taken)


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """Return the search trials that were not interrupted."""
    return [trial for trial in trials if trial.purpose == SEARCH and trial.counts]


def spent(executor: TrialExecutor, search_trials: int) -> str:
    """Return in words which budget is spent; empty if none is."""
    limits = executor.problem.limits
    if limits.trials is not None and search_trials >= limits.trials:
        return f"the budget of {limits.trials} trials is spent"
    if limits.wall_time_s is not None and executor.spent_s() >= limits.wall_time_s:
        return f"the budget of {format_seconds(limits.wall_time_s)} is spent"
    return ""


def _exhausted(tried: int, valid: int) -> str:
    skipped = valid - tried
    if not skipped:
        return "every valid configuration was tried"
    return f"nothing is left to try: {skipped} configurations need at least as much memory as one that ran out of memory"
