"""Run a verification in rounds: one trial of each configuration a round, in an order that reverses, as the repeats of a search do."""

import dataclasses
from collections.abc import Sequence

from oppa.study import Trial
from oppa.tuning.comparison import WinnerComparison, is_unreliable, pairing_of
from oppa.tuning.session import SessionCallback, SessionOptions, open_session
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.verify.finished import FinishedStudy
from oppa.tuning.verify.past import open_folder, write_verdict
from oppa.tuning.verify.plan import VerifyPlan
from oppa.tuning.verify.result import VerifyResult
from oppa.tuning.winner import allows, last_of, repeat_s, request_of


def run_verification(plan: VerifyPlan, callback: SessionCallback | None = None) -> VerifyResult:
    """Run the trials of a verification, and store its verdict in its folder.

    Raises:
        StudyError: a trial of an earlier verification runs, or the study's folder cannot be written.
        EnvironmentLackingError: the hosts are gone, or can never be granted.
        KeyboardInterrupt: the user stopped it.
    """
    number, folder = open_folder(plan.finished.folder, plan.setup.problem)
    options = SessionOptions(folder=folder, facts=plan.facts, seed=number, callback=callback, verification=plan)
    with open_session(plan.setup, options) as executor:
        now, ended = measure_again(executor, plan)
        result = VerifyResult.of(plan, executor.study, now, number, ended=ended)
        write_verdict(folder, result.to_dict())
        return result


def measure_again(executor: TrialExecutor, plan: VerifyPlan) -> tuple[WinnerComparison, str]:
    """Repeat the configurations in turn until each has its repeats, no longer runs, or the budget is spent.

    The second value names the budget in words if it ended the rounds; else it is empty. While the verdict on the winner is unclear, there
    are more rounds, up to the maximum.
    """
    study, contenders, rounds = executor.study, plan.finished.contenders, plan.rounds
    while True:
        study.recover()
        running, trials = study.running(), study.trials()  # in this order, so that one that ends meanwhile is seen
        now = measured_again(plan.finished, trials)
        due = now.missing(rounds) if now.repeats else None
        if due is None and rounds < plan.most_rounds and plan.verdict(plan.finished.found.best.configuration, trials).verdict == "unclear":
            rounds += 1
            continue
        if due is None:
            return now, ""
        expected_s = repeat_s(contenders[due], executor.problem)
        if not allows(executor, trials, expected_s) and (not running or executor.budget.must_release()):
            return now, executor.budget.spent_in_words()
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
