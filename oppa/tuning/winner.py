"""Find the winner of a search: fresh repeats verify it against the default and the runner-up, in turn."""

import math
from collections.abc import Sequence

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Lease, Trial
from oppa.study.records import BASELINE, VERIFICATION, TimeBudget
from oppa.tuning.answers import prediction_of
from oppa.tuning.comparison import BASELINES, WinnerComparison, compare_contenders, contenders, untried_reference
from oppa.tuning.designer import Designer
from oppa.tuning.device_budget import CONTENDERS, UNPREDICTED, VARIATION, complete_s, startup_s, step_s
from oppa.tuning.trial_executor import TrialExecutor


def find_winner(executor: TrialExecutor, candidates: Candidates, designer: Designer) -> WinnerComparison | None:
    """Find a reference that fits, then repeat it, the fastest and the runner-up until the winner is verified; None if nothing fits.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
    """
    study, repeats, baseline = executor.study, executor.problem.limits.repeats, executor.problem.baseline
    while True:
        study.recover()
        running, trials = study.running(), study.trials()  # in this order, so that one that ends meanwhile is seen
        result = compare_contenders(trials, candidates, repeats, baseline)
        executor.failing_repeatedly(trials)
        reference = _untried_reference(trials, candidates, designer, executor.problem)
        expected_s = None if reference is None else complete_s(prediction_of(designer, reference), trials, executor.problem)
        if reference is not None and allows(executor, trials, expected_s):
            due, purpose, pairing = candidates.configuration(reference), BASELINE, None
        elif result is None and running and not executor.budget.must_release():
            executor.wait()  # the trials of other tuners may be the first that run
            continue
        elif result is None or (repeat := result.missing(repeats)) is None:
            return result
        else:
            due, purpose, pairing = repeat, VERIFICATION, result.pairing
            expected_s = repeat_s(next(trial for trial in contenders(result) if trial.configuration == repeat), executor.problem)
            if not allows(executor, trials, expected_s) and (not running or executor.budget.must_release()):
                return result
        if any(lease.purpose == purpose and lease.pairing == pairing for lease in running):
            executor.wait()  # another tuner runs it
            continue
        prediction = prediction_of(designer, candidates.index_of(due))
        request = request_of(executor, trials, expected_s)
        if (
            lease := study.claim(
                due, purpose=purpose, pairing=pairing, prediction=prediction, after=last_of(trials, running), budget=request
            )
        ) is not None:
            executor.run(lease)
        else:
            executor.wait()  # the trials of other tuners hold the rest of the budget


def _untried_reference(trials: Sequence[Trial], candidates: Candidates, designer: Designer, problem: Problem) -> int | None:
    """Return the next reference to try, as far as the designer can tell one that fits."""

    def may_fit(candidate: int) -> bool:
        prediction = prediction_of(designer, candidate)
        return prediction is None or prediction.fits(problem.cluster.usable_bytes)

    return untried_reference(trials, candidates, problem.baseline, may_fit=may_fit)


def last_of(trials: Sequence[Trial], running: Sequence[Lease]) -> int:
    """Return the number of the last trial among those that ended or run; 0 if there is none."""
    return max([*(trial.id for trial in trials), *(lease.trial for lease in running)], default=0)


def verification_s(trials: Sequence[Trial], candidates: Candidates, designer: Designer, problem: Problem) -> float:
    """Return the seconds that verification is expected to take, given the trials so far; infinity if nothing is known."""
    repeats, baseline = problem.limits.repeats, problem.baseline
    result, reference = compare_contenders(trials, candidates, repeats, baseline), _untried_reference(trials, candidates, designer, problem)
    known = {} if result is None else {trial.configuration: repeat_s(trial, problem) for trial in contenders(result)}
    untried_s = None if reference is None else complete_s(prediction_of(designer, reference), trials, problem)
    slowest_s = max(known.values(), default=math.inf)
    reference_s = slowest_s if reference is None else untried_s or UNPREDICTED * slowest_s
    due = sum((repeats - len(result.repeats[each])) * seconds for each, seconds in known.items()) if result else 0.0
    due += reference_s * (
        repeats * max(0, min(CONTENDERS, len(candidates)) - len(known)) if result is None or result.missing(repeats) else 0
    )
    looked_for_s = 0.0 if reference is None else reference_s + BASELINES * startup_s(trials)  # most may run out of memory
    return VARIATION * (due + looked_for_s)


def request_of(executor: TrialExecutor, trials: Sequence[Trial], expected_s: float | None) -> TimeBudget | None:
    """Return the request for a trial that is worth nothing unless it completes."""
    steps_s = max(0.0, (expected_s or 0.0) - startup_s(trials))
    return executor.budget.request(trials, most_s=executor.problem.limits.trial_time_s, steps_s=steps_s)


def allows(executor: TrialExecutor, trials: Sequence[Trial], expected_s: float | None) -> bool:
    """Return whether the budget has as much left as such a trial needs."""
    return executor.budget.allows(request_of(executor, trials, expected_s))


def repeat_s(trial: Trial, problem: Problem) -> float:
    """Return the expected seconds of another trial of a configuration that runs to its end."""
    steps_s = problem.limits.q_max * (step_s(trial, problem) or 0.0)
    return min(problem.limits.trial_time_s, max(trial.seconds, (trial.setup_s or 0.0) + steps_s))
