"""Find the winner of a search: fresh repeats verify it against the default and the runner-up, in turn."""

import functools
import math
from collections.abc import Sequence

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Lease, Prediction, Trial
from oppa.study.records import BASELINE, VERIFICATION, TimeBudget
from oppa.tuning.answers import prediction_of
from oppa.tuning.comparison import BASELINES, WinnerComparison, compare_contenders, contenders, untried_reference
from oppa.tuning.designer import Designer
from oppa.tuning.device_budget import CONTENDERS, UNPREDICTED, VARIATION, complete_s, startup_s, step_s
from oppa.tuning.search import search
from oppa.tuning.stopping import StopTest
from oppa.tuning.trial_executor import TrialExecutor


def search_and_verify(
    executor: TrialExecutor,
    candidates: Candidates,
    designer: Designer,
    rule: StopTest,
    *,
    watches_drift: bool = False,
    ends_unpaid: bool = False,
) -> tuple[str, WinnerComparison | None]:
    """Search and find the winner. Return in a few words what ended the search, and the winner; None if nothing fits.

    A limit of GPU-hours keeps a part for verification. The search goes on with what the reference and the repeats leave of that part. It
    may spend all of it while there is nothing to compare, and no reference can run.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
    """
    run_search = functools.partial(search, executor, candidates, designer, rule, watches_drift=watches_drift, ends_unpaid=ends_unpaid)
    if executor.budget.total_s is None:
        return run_search(), find_winner(executor, candidates, designer)

    def reserve(trials: Sequence[Trial]) -> float:
        return verification_s(trials, candidates, designer, executor.problem)

    def reserve_if_comparable(trials: Sequence[Trial]) -> float:
        result = compare_contenders(trials, candidates, executor.problem.limits.repeats, executor.problem.baseline)
        return reserve(trials) if result is not None and len(result.repeats) > 1 else 0.0

    while True:
        ended, tried = run_search(reserve=reserve), len(executor.study.trials())
        find_reference(executor, candidates, designer)
        if len(executor.study.trials()) == tried:
            ended = run_search(reserve=reserve_if_comparable)
        if len(executor.study.trials()) == tried:
            found = find_winner(executor, candidates, designer)
            if len(executor.study.trials()) == tried:
                return ended, found


def find_winner(executor: TrialExecutor, candidates: Candidates, designer: Designer) -> WinnerComparison | None:
    """Find a reference that fits, then repeat it, the fastest and the runner-up until the winner is verified; None if nothing fits.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
    """
    study, repeats, baseline = executor.study, executor.problem.limits.repeats, executor.problem.baseline
    while True:
        find_reference(executor, candidates, designer)
        running, trials = study.running(), study.trials()  # in this order, so that one that ends meanwhile is seen
        result = compare_contenders(trials, candidates, repeats, baseline)
        if result is None and running and not executor.budget.must_release():
            executor.wait()  # the trials of other tuners may be the first that run
            continue
        if result is None or (due := result.missing(repeats)) is None:
            return result
        expected_s = repeat_s(next(trial for trial in contenders(result) if trial.configuration == due), executor.problem)
        if not allows(executor, trials, expected_s) and (not running or executor.budget.must_release()):
            return result
        prediction = prediction_of(designer, candidates.index_of(due))
        _run(executor, due, running, trials, expected_s=expected_s, prediction=prediction, purpose=VERIFICATION, pairing=result.pairing)


def find_reference(executor: TrialExecutor, candidates: Candidates, designer: Designer) -> None:
    """Try references until one was measured, too many were not, or the budget allows no more.

    Raises:
        RepeatedFailureError: no trial took a step, and the last ones failed in the same way.
    """
    while True:
        executor.study.recover()
        running, trials = executor.study.running(), executor.study.trials()  # in this order, so that one that ends meanwhile is seen
        executor.failing_repeatedly(trials)
        reference = _untried_reference(trials, candidates, designer, executor.problem)
        prediction = None if reference is None else prediction_of(designer, reference)
        expected_s = complete_s(prediction, trials, executor.problem)
        if reference is None or not allows(executor, trials, expected_s):
            return
        due = candidates.configuration(reference)
        _run(executor, due, running, trials, expected_s=expected_s, prediction=prediction, purpose=BASELINE)


def _run(
    executor: TrialExecutor,
    due: Configuration,
    running: Sequence[Lease],
    trials: Sequence[Trial],
    *,
    expected_s: float | None,
    prediction: Prediction | None,
    purpose: str,
    pairing: str | None = None,
) -> None:
    """Run a trial, or wait while another tuner runs one of this purpose or holds the rest of the budget."""
    request, after = request_of(executor, trials, expected_s), last_of(trials, running)
    lease = None
    if not any(lease.purpose == purpose and lease.pairing == pairing for lease in running):
        lease = executor.study.claim(due, purpose=purpose, pairing=pairing, prediction=prediction, after=after, budget=request)
    if lease is None:
        executor.wait()
    else:
        executor.run(lease)


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
    """Return the seconds that verification is expected to take, given the trials so far; infinity if nothing is known.

    All repeats of a finished verification count again, because a further trial of the search may change the contenders.
    """
    repeats, baseline = problem.limits.repeats, problem.baseline
    result, reference = compare_contenders(trials, candidates, repeats, baseline), _untried_reference(trials, candidates, designer, problem)
    known = {} if result is None else {trial.configuration: repeat_s(trial, problem) for trial in contenders(result)}
    untried_s = None if reference is None else complete_s(prediction_of(designer, reference), trials, problem)
    slowest_s = max(known.values(), default=math.inf)
    reference_s = slowest_s if reference is None else untried_s or UNPREDICTED * slowest_s
    unknown = max(0, min(CONTENDERS, len(candidates)) - len(known))
    ran = result.repeats if result is not None and result.missing(repeats) else {}
    due_s = sum((repeats - len(ran.get(each, ()))) * seconds for each, seconds in known.items()) + repeats * unknown * reference_s
    looked_for_s = 0.0 if reference is None else reference_s + BASELINES * startup_s(trials)  # most may run out of memory
    return VARIATION * (due_s + looked_for_s)


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
