"""Run the rounds of a verification: one trial of each configuration a round, in an order that reverses, as the repeats of a search do."""

import dataclasses
from collections.abc import Sequence

from oppa.study import Trial
from oppa.tuning.comparison import WinnerComparison, is_unreliable, pairing_of
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.verify.finished import FinishedStudy
from oppa.tuning.winner import allows, last_of, repeat_s, request_of


def measure_again(executor: TrialExecutor, finished: FinishedStudy, rounds: int) -> WinnerComparison:
    """Repeat the configurations in turn until each has `rounds` repeats, no longer runs, or the budget is spent."""
    study, contenders = executor.study, finished.contenders
    while True:
        study.recover()
        running, trials = study.running(), study.trials()  # in this order, so that one that ends meanwhile is seen
        now = measured_again(finished, trials)
        due = now.missing(rounds) if now.repeats else None
        if due is None:
            return now
        expected_s = repeat_s(contenders[due], executor.problem)
        if not allows(executor, trials, expected_s) and (not running or executor.budget.must_release()):
            return now
        if running:
            executor.wait()  # another process runs the next trial of this verification
            continue
        request, seen = request_of(executor, trials, expected_s), last_of(trials, running)
        lease = study.claim(due, pairing=pairing_of(contenders), after=seen, budget=request)
        if lease is None:
            executor.wait()
        else:
            executor.run(lease)


def measured_again(finished: FinishedStudy, trials: Sequence[Trial]) -> WinnerComparison:
    """Return the study's result with the repeats of a verification in place of its own; configurations that no longer run have none."""
    ran = {
        each: tuple(trial for trial in trials if trial.configuration == each and trial.feasible)
        for each in finished.contenders
        if not is_unreliable(trials, each)
    }
    return dataclasses.replace(finished.found, repeats=ran)
