"""The search: suggest, run, record, until a budget is spent or nothing is left to try.

Several processes may search one study at once: the study's leases keep them apart, its trials are the state they share.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from oppa.errors import LeaseLostError
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Lease, Study, Trial
from oppa.study.records import SEARCH
from oppa.trials.launcher import Launcher
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.wire import Measurement, TrialSpec
from oppa.tuning.designer import Designer, Observation, Suggestion

RENEW_EVERY_S = 10.0


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


class Bench:
    """Where the trials of one study run: claims a trial, runs it, and records how it ended, whatever happens."""

    def __init__(self, study: Study, problem: Problem, launcher: Launcher, watcher: Watcher) -> None:
        self.study = study
        self.problem = problem
        self._launcher = launcher
        self._watcher = watcher

    def run(self, lease: Lease) -> TrialResult | None:
        """Run a leased trial to its end; None if another tuner took it over meanwhile.

        Raises:
            BaseException: whatever `tick` raises, when no process of the trial is left and the trial is recorded as interrupted.
        """
        self._watcher.started(lease)
        try:
            result = run_trial(
                self._launcher,
                self.study.trial_folder(lease),
                self._spec(lease),
                limits=self.problem.limits,
                on_step=self._watcher.stepped,
                on_tick=self._heartbeat(lease),
            )
            self.study.finish(lease, result)
        except LeaseLostError:
            return None
        except KeyboardInterrupt:
            self.study.interrupt(lease, "interrupted by the user")
            raise
        self._watcher.ended(lease, result)
        return result

    def _spec(self, lease: Lease) -> TrialSpec:
        problem = self.problem
        return TrialSpec(
            study=self.study.uuid,
            trial=lease.trial,
            configuration=lease.configuration,
            model=problem.model,
            cluster=problem.cluster,
            training=problem.training,
            steps=problem.limits.q_max,
        )

    def _heartbeat(self, lease: Lease) -> Callable[[], None]:
        due = time.monotonic() + RENEW_EVERY_S

        def tick() -> None:
            nonlocal due
            self._watcher.tick()
            if time.monotonic() >= due:
                due = time.monotonic() + RENEW_EVERY_S
                self.study.renew(lease)

        return tick


def search(bench: Bench, candidates: Candidates, designer: Designer) -> str:
    """Run search trials until the budget is spent; says in a few words what ended it."""
    study, limits, learned = bench.study, bench.problem.limits, set[int]()
    while True:
        study.recover()
        trials = [trial for trial in study.trials() if trial.purpose == SEARCH and trial.outcome != "interrupted"]
        if reason := spent(study, limits, len(trials)):
            return reason
        designer.update([Observation.of(trial, candidates) for trial in trials if trial.id not in learned])
        learned |= {trial.id for trial in trials}
        suggestion = _next(study, candidates, designer, trials)
        if suggestion is None:
            return "every valid configuration was tried"
        lease = study.claim(candidates.configuration(suggestion.candidate), prediction=suggestion.prediction, limit=limits.trials)
        if lease is None:  # another tuner was faster: look again, with its trials in sight
            continue
        bench.run(lease)


def spent(study: Study, limits: Limits, search_trials: int) -> str:
    """Which budget is spent; empty if none is. Trials that other tuners run now count."""
    running = sum(lease.purpose == SEARCH for lease in study.running())
    if limits.trials is not None and search_trials + running >= limits.trials:
        return f"all {limits.trials} trials are spent"
    if limits.wall_time_s is not None and study.spent_s() >= limits.wall_time_s:
        return f"{limits.wall_time_s:g} s of wall-clock time are spent"
    return ""


def _next(study: Study, candidates: Candidates, designer: Designer, trials: Sequence[Trial]) -> Suggestion | None:
    """The default configuration until one is known to fit, then the designer's choice."""
    running = {candidates.index_of(lease.configuration) for lease in study.running()}
    ended = {candidates.index_of(trial.configuration): trial for trial in trials}
    for candidate in candidates.default_order():
        if (candidate in ended and ended[candidate].feasible) or candidate in running:
            break
        if candidate not in ended:
            return Suggestion(candidate=int(candidate))
    return designer.suggest(ended.keys() | running)


def default_trial(candidates: Candidates, trials: Sequence[Trial]) -> Trial | None:
    """The trial of the default configuration: the first in the default order that was shown to fit."""
    ended = {candidates.index_of(trial.configuration): trial for trial in trials if trial.purpose == SEARCH}
    return next((ended[index] for index in candidates.default_order() if index in ended and ended[index].feasible), None)


def incumbents(trials: Sequence[Trial]) -> list[Trial]:
    """Feasible search trials, fastest first."""
    feasible = [trial for trial in trials if trial.purpose == SEARCH and trial.feasible]
    return sorted(feasible, key=lambda trial: -(trial.steps_per_s or 0.0))
