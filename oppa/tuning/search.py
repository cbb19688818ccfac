"""The search: suggest, run, record, until a budget is spent or nothing is left to try.

Several processes may search one study at once: the study's leases keep them apart, its trials are the state they share.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Protocol

from oppa.errors import LeaseLostError, OppaError
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Lease, Study, Trial
from oppa.study.records import SEARCH, VERIFICATION
from oppa.trials.trial import TrialResult
from oppa.trials.watch import Judge
from oppa.trials.wire import Measurement, TrialSpec
from oppa.tuning import repeated_failures
from oppa.tuning.designer import Designer, Observation
from oppa.tuning.stopping import Rule, against
from oppa.tuning.time_limit import time_limit_s
from oppa.units import format_seconds

RENEW_EVERY_S = 10.0
WAIT_S = 0.1


class Watcher(Protocol):
    """Sees a study at work; `tick` is called many times a second and may raise to break off the trial."""

    def started(self, lease: Lease) -> None:
        """A trial begins."""
        ...

    def stepped(self, measurement: Measurement) -> None:
        """The running trial finished an optimizer step."""
        ...

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """The trial ended, and its end is on disk."""
        ...

    def tick(self) -> None:
        """Time passes."""
        ...


class RunTrial(Protocol):
    """Runs one trial to its end: `run_trial` with a launcher, or an imitation of it."""

    def __call__(
        self,
        folder: Path,
        spec: TrialSpec,
        *,
        limits: Limits,
        judge: Judge | None,
        on_step: Callable[[Measurement], None],
        on_tick: Callable[[], None],
    ) -> TrialResult:
        """Run the trial in `folder`; what `on_tick` raises ends it and is passed on."""
        ...


class Sitting:
    """One process at work on a study: runs the trials that it has leased, and records how they ended, whatever happens."""

    def __init__(self, study: Study, problem: Problem, run_trial: RunTrial, watcher: Watcher, *, imitated: bool = False) -> None:
        """`imitated`: trials take no time of ours, so that a budget of time is spent by theirs."""
        self.study = study
        self.problem = problem
        self._run_trial = run_trial
        self._watcher = watcher
        self._imitated = imitated
        earlier = study.trials()
        self._earlier = {trial.id for trial in earlier}
        self.mended = {trial.id for trial in ([] if imitated else self._alike(earlier, earlier))}
        """Trials that ended the sitting before because they failed alike: their configurations may run by now."""

    def spent_s(self) -> float:
        """Seconds that the search took so far, over all sittings."""
        return sum(trial.seconds for trial in self.study.trials()) if self._imitated else self.study.spent_s()

    def run(self, lease: Lease, *, judge: Judge | None = None, trial_time_s: float | None = None) -> TrialResult | None:
        """Run a leased trial to its end, or until its judge has seen enough; None if another tuner took it over meanwhile.

        Raises:
            BaseException: whatever `tick` raises, when no process of the trial is left and the trial is recorded as interrupted.
        """
        limits = self.problem.limits
        try:
            self._watcher.started(lease)
            result = self._run_trial(
                self.study.trial_folder(lease),
                TrialSpec.of(self.problem, lease.configuration, study=self.study.uuid, trial=lease.trial, steps=limits.q_max),
                limits=dataclasses.replace(limits, trial_time_s=trial_time_s or limits.trial_time_s),
                judge=judge,
                on_step=self._watcher.stepped,
                on_tick=self._heartbeat(lease),
            )
            self.study.finish(lease, result)
        except LeaseLostError:
            return None
        except BaseException as reason:
            with contextlib.suppress(OppaError):  # it ended already, or the disk is full: a later start recovers the lease
                self.study.interrupt(lease, "interrupted by the user" if isinstance(reason, KeyboardInterrupt) else f"broken off: {reason}")
            raise
        self._watcher.ended(lease, result)
        return result

    def failing_alike(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the last trials of this sitting if enough of them failed alike before their first step; none where trials are imitated.

        Raises:
            RepeatedFailureError: if none of all trials has taken a step, either.
        """
        alike = [] if self._imitated else self._alike([trial for trial in trials if trial.id not in self._earlier], trials)
        if alike and not any(trial.step_times_s for trial in trials):
            raise repeated_failures.error(alike, self.study, self.problem)
        return alike

    def _alike(self, recent: Sequence[Trial], known: Sequence[Trial]) -> list[Trial]:
        return repeated_failures.repeated(recent, known, command=self.problem.command is not None)

    def wait(self) -> None:
        """Let other tuners of this study work for a moment."""
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


def search(sitting: Sitting, candidates: Candidates, designer: Designer, rule: Rule) -> str:
    """Run search trials until the budget is spent and no tuner runs one any more; says in a few words what ended it.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed alike.
    """
    study, limits, learned = sitting.study, sitting.problem.limits, set[int]()
    while True:
        study.recover()
        running = [lease for lease in study.running() if lease.purpose == SEARCH]
        every = study.trials()
        alike = sitting.failing_alike(every)
        counted = [trial for trial in every if trial.counts and trial.purpose != VERIFICATION]
        trials = [trial for trial in counted if trial.id not in sitting.mended]
        reason = repeated_failures.in_words(alike) if alike else spent(sitting, len(searched(counted)) + len(running))
        seen = [Observation.of(trial, candidates) for trial in trials]
        if new := [observation for trial, observation in zip(trials, seen, strict=True) if trial.id not in learned]:
            designer.update(new)
        learned |= {trial.id for trial in trials}
        taken = {observation.candidate for observation in seen} | {candidates.index_of(lease.configuration) for lease in running}
        candidate = None if reason else _next(sitting.problem, candidates, designer, taken)
        if candidate is not None:
            prediction = designer.predict(candidate)
            configuration = candidates.configuration(candidate)
            tried = sum(trial.configuration == configuration for trial in searched(counted))
            lease = study.claim(configuration, tried=tried, prediction=prediction, limit=limits.trials)
            if lease is None:
                sitting.wait()  # another tuner was faster: look again, with its trials in sight
            else:
                sitting.run(lease, judge=against(rule, seen), trial_time_s=time_limit_s(prediction, trials, limits))
        elif running:  # they may yet fail to end, and are ours to finish then
            sitting.wait()
        else:
            return reason or _exhausted(len(taken), len(candidates))


def _next(problem: Problem, candidates: Candidates, designer: Designer, taken: Set[int]) -> int | None:
    """The next candidate: what the user runs at present comes first, whoever designs."""
    if problem.baseline is not None and (baseline := candidates.index_of(problem.baseline)) not in taken:
        return baseline
    return designer.suggest(taken)


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """The search trials that count."""
    return [trial for trial in trials if trial.purpose == SEARCH and trial.counts]


def spent(sitting: Sitting, search_trials: int) -> str:
    """Which budget is spent; empty if none is."""
    limits = sitting.problem.limits
    if limits.trials is not None and search_trials >= limits.trials:
        return f"the budget of {limits.trials} trials is spent"
    if limits.wall_time_s is not None and sitting.spent_s() >= limits.wall_time_s:
        return f"the budget of {format_seconds(limits.wall_time_s)} is spent"
    return ""


def _exhausted(tried: int, valid: int) -> str:
    skipped = valid - tried
    if not skipped:
        return "every valid configuration was tried"
    return f"nothing is left to try: {skipped} configurations need at least as much memory as one that ran out of it"
