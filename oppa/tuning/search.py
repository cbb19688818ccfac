"""Run the search: suggest, run and record trials until a budget is spent or nothing is left to try.

Several processes may search one study at once. The study's leases keep them apart, and its trials are the state they share.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Self

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Lease, Trial
from oppa.study.records import DRIFT, SEARCH, VERIFICATION
from oppa.tuning import repeated_failures
from oppa.tuning.answers import asking, checked_candidate, prediction_of
from oppa.tuning.counted_batches import refuse_counted_batches
from oppa.tuning.designer import Concurrent, Designer, Explained, Observation, Restated, incumbent
from oppa.tuning.device_budget import worthwhile_s
from oppa.tuning.drift import drift_of, is_due
from oppa.tuning.stopping import StopTest, against
from oppa.tuning.time_limit import time_limit_s
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.worth import worth_of
from oppa.units import format_seconds, with_noun

Reserve = Callable[[Sequence[Trial]], float]
"""A function of the trials so far. It returns the seconds that later trials, such as verification, need."""


def search(
    executor: TrialExecutor,
    candidates: Candidates,
    designer: Designer,
    rule: StopTest,
    *,
    reserve: Reserve = lambda _: 0.0,
    watches_drift: bool = False,
    ends_unpaid: bool = False,
) -> str:
    """Run search trials until the budget is spent and no tuner runs one. Return in a few words what ended the search.

    Args:
        reserve: Seconds of the devices that the search leaves for later trials.
        watches_drift: Repeat the incumbent now and then, to tell a drift of the machine from differences between configurations.
        ends_unpaid: End once the next trial does not pay for the run that the job states (`oppa.tuning.worth`).

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
        InputError: the steps of an undeclared program turn out to be batches.
    """
    study, limits, learned, totals = executor.study, executor.problem.limits, dict[int, float](), dict[int, int | None]()
    while True:
        study.recover()
        now = _StudyState.of(executor, candidates, watches_drift=watches_drift)
        refuse_counted_batches(executor.problem, study, now.counted, totals)
        _teach(designer, now, learned)
        purpose, candidate, reason = _next(executor, candidates, designer, now, watches_drift=watches_drift, ends_unpaid=ends_unpaid)
        prediction = None if candidate is None else prediction_of(designer, candidate)
        timed = prediction if executor.problem.rates_are_steps else None
        limit_s = time_limit_s(timed, now.observed, limits, cold=executor.is_cold(now.counted))
        steps_s = worthwhile_s(prediction, now.every, executor.problem)
        kept_s = 0.0 if executor.budget.total_s is None else reserve(now.every)
        request = executor.budget.request(now.every, most_s=limit_s, steps_s=steps_s, reserved_s=kept_s)
        if candidate is not None and not executor.budget.allows(request):
            candidate, reason = None, executor.budget.spent_in_words()
        if candidate is not None:
            configuration = candidates.configuration(candidate)
            tried = sum(trial.configuration == configuration for trial in searched(now.counted))
            lease = study.claim(configuration, purpose=purpose, tried=tried, prediction=prediction, limit=limits.trials, budget=request)
            if lease is None:
                executor.wait()  # another tuner was faster: choose again, given its trials
            else:
                executor.run(lease, stop_rule=against(rule, now.seen) if purpose == SEARCH else None, trial_time_s=limit_s)
        elif now.running and not executor.budget.must_release():  # their tuner may die, and this one must then finish the search
            executor.wait()
        else:
            return reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _StudyState:
    """Holds what a study contains at one moment of a search."""

    every: Sequence[Trial]
    counted: Sequence[Trial]
    """Trials that count, without those of the verification."""
    observed: Sequence[Trial]
    """Counted trials, without those whose failure may be mended by now."""
    offsets: Mapping[int, float]
    """Drift of the machine that is taken off each observed trial, by its number."""
    seen: Sequence[Observation]
    """Observations of these trials, in their order, from which the designer learns."""
    running: Sequence[Lease]
    """Search trials that run."""
    taken: Set[int]
    """Candidates that were tried, or run."""
    is_failing: bool
    """True if the last trials failed in the same way."""
    ended: str
    """Reason that ends the search, in words; empty if nothing does."""

    @classmethod
    def of(cls, executor: TrialExecutor, candidates: Candidates, *, watches_drift: bool) -> Self:
        """Read the study.

        Raises:
            RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
        """
        running = [lease for lease in executor.study.running() if lease.purpose == SEARCH]
        every = executor.study.trials()
        failures = executor.failing_repeatedly(every)
        counted = [trial for trial in every if trial.counts and trial.purpose != VERIFICATION]
        observed = [trial for trial in counted if trial.id not in executor.mended]
        drift = drift_of(counted).offsets if watches_drift else {}
        offsets = {trial.id: drift.get(trial.id, 0.0) for trial in observed}
        seen = [Observation.of(trial, candidates, offset=offsets[trial.id]) for trial in observed]
        return cls(
            every=every,
            counted=counted,
            observed=observed,
            offsets=offsets,
            seen=seen,
            running=running,
            taken={each.candidate for each in seen} | {candidates.index_of(lease.configuration) for lease in running},
            is_failing=bool(failures),
            ended=repeated_failures.in_words(failures) if failures else spent(executor, len(searched(counted)) + len(running)),
        )


def _next(
    executor: TrialExecutor, candidates: Candidates, designer: Designer, now: _StudyState, *, watches_drift: bool, ends_unpaid: bool
) -> tuple[str, int | None, str]:
    """Return the purpose and the candidate of the next trial; if the latter is None, also what ends the search, in words."""
    may_repeat = watches_drift and not now.is_failing and not now.running and not spent(executor, 0)  # none of `limits.trials`
    if may_repeat and (again := _again(executor, now, ending=bool(now.ended))) is not None:
        return DRIFT, again, ""
    if now.ended:
        return SEARCH, None, now.ended
    running = {candidates.index_of(lease.configuration) for lease in now.running}
    candidate, reason = next_candidate(executor.problem, candidates, designer, now.taken, running=running), ""
    if candidate is None:
        reason = _exhausted(designer, len(candidates) - len(now.taken))
    elif ends_unpaid:
        with asking(designer):
            worth = worth_of(executor.problem, candidates, designer, now.seen, candidate)
        if worth and not worth.pays:
            candidate, reason = None, worth.in_words()
    if candidate is None and may_repeat:
        return DRIFT, _again(executor, now, ending=True), reason
    return SEARCH, candidate, reason


def _teach(designer: Designer, now: _StudyState, learned: dict[int, float]) -> None:
    """Pass new observations to the designer; pass all of them again if the estimated drift of known ones has changed.

    Args:
        learned: Drift that was subtracted from each observation that the designer knows, by the trial's number; this call updates it.
    """
    new = [observation for trial, observation in zip(now.offsets, now.seen, strict=True) if trial not in learned]
    changed = any(now.offsets.get(trial, offset) != offset for trial, offset in learned.items())
    with asking(designer):
        if changed and isinstance(designer, Restated):
            designer.restate(now.seen)
        elif new:
            designer.update(new)
    learned |= now.offsets


def _again(executor: TrialExecutor, now: _StudyState, *, ending: bool) -> int | None:
    """Return the incumbent if it is to run again, to show a drift of the machine; else None."""
    best, own = incumbent(now.seen), executor.own(now.counted)
    if not own or best is None:  # a finished search may have been opened again
        return None
    if any(lease.purpose == DRIFT for lease in executor.study.running()):
        return None
    is_resumed = len(own) < len(now.counted) and not any(trial.purpose == DRIFT for trial in own)
    return best[0] if is_due(now.counted, resumed=is_resumed and not ending, ending=ending) else None


def next_candidate(
    problem: Problem, candidates: Candidates, designer: Designer, taken: Set[int], *, running: Set[int] = frozenset()
) -> int | None:
    """Return the next candidate: the user's present configuration first, whatever the designer; None if none is left.

    Args:
        taken: Candidates that were tried, or run.
        running: Those that run.

    Raises:
        InputError: a designer that is not oppa's fails, or suggests what is no candidate.
    """
    if problem.baseline is not None and (baseline := candidates.index_of(problem.baseline)) not in taken:
        return baseline
    with asking(designer):
        answer = designer.suggest_with_pending(running, taken) if running and isinstance(designer, Concurrent) else designer.suggest(taken)
    return checked_candidate(designer, answer, len(candidates))


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """Return the search trials that were not interrupted."""
    return [trial for trial in trials if trial.purpose == SEARCH and trial.counts]


def spent(executor: TrialExecutor, search_trials: int) -> str:
    """Return in words which budget is spent; empty if none is."""
    limits = executor.problem.limits
    if limits.trials is not None and search_trials >= limits.trials:
        return f"the budget of {with_noun(limits.trials, 'trial')} is spent"
    if limits.wall_time_s is not None and executor.spent_s() >= limits.wall_time_s:
        return f"the budget of {format_seconds(limits.wall_time_s)} is spent"
    return ""


def _exhausted(designer: Designer, skipped: int) -> str:
    """Return in words why a designer suggests nothing, and leaves some candidates out."""
    if not skipped:
        return "every valid configuration was tried"
    return designer.reason_to_end(skipped) if isinstance(designer, Explained) else "the designer suggests no further trial"
