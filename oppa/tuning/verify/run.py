"""Run a verification from its folder to its verdict."""

from oppa.tuning.session import SessionCallback, SessionOptions, open_session
from oppa.tuning.verify.past import open_folder, write_verdict
from oppa.tuning.verify.plan import VerifyPlan
from oppa.tuning.verify.result import VerifyResult
from oppa.tuning.verify.rounds import measure_again


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
        now = measure_again(executor, plan.finished, plan.rounds)
        result = VerifyResult.of(plan, executor.study, now, number)
        write_verdict(folder, result.to_dict())
        return result
