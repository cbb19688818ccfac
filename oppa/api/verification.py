"""Measure the winner of a study again, or plan to."""

from collections.abc import Sequence
from pathlib import Path

import oppa


def verify(
    study: str | Path,
    *,
    rounds: int | None = None,
    margin: float | None = None,
    max_gpu_hours: float | None = None,
    runner_up: bool = False,
    settings: Sequence[str] = (),
    callback: "oppa.SessionCallback | None" = None,
) -> "oppa.VerifyResult":
    """Measure the winner of a finished study and its reference again, as after an upgrade, and compare them with the study.

    Args:
        study: Folder of the study, which may have been measured in another environment.
        rounds: Trials of each configuration, which take turns. None: the repeats of the study.
            Then there are up to 10 while the winner's verdict is unclear.
        margin: Largest change, as a share of the throughput, that does not count. None: 0.05.
        max_gpu_hours: Hours of all devices together that the verification may take. None: those of the whole study.
        runner_up: Measure the runner-up of the search as well, as where other limits may change the order.
        settings: Changes of the study's limits or launcher, such as `limits.trial_time=5 min`.
        callback: Watches the session.

    Raises:
        InputError: the study has no winner, is in use, or an argument is wrong.
        EnvironmentLackingError: the program, a package or a device is missing.
        KeyboardInterrupt: the user stopped the verification; the same call continues it within a day.
    """
    from oppa.tuning.verify.rounds import run_verification

    planned = plan_verification(study, rounds=rounds, margin=margin, max_gpu_hours=max_gpu_hours, runner_up=runner_up, settings=settings)
    return run_verification(planned, callback)


def plan_verification(
    study: str | Path,
    *,
    rounds: int | None = None,
    margin: float | None = None,
    max_gpu_hours: float | None = None,
    runner_up: bool = False,
    settings: Sequence[str] = (),
) -> "oppa.VerifyPlan":
    """Return the plan of a verification with the arguments of `verify`, and raise its errors; start nothing, and make no folder."""
    from oppa.problem.study_settings import with_changes
    from oppa.report.record import provenance
    from oppa.tuning.session import Setup, with_limits
    from oppa.tuning.verify.finished import FinishedStudy
    from oppa.tuning.verify.plan import VerifyPlan

    finished = FinishedStudy.read(Path(study), runner_up=runner_up)
    problem = with_limits(with_changes(finished.problem, settings), max_gpu_hours=max_gpu_hours)
    setup = Setup.of(problem, None, alone=True)
    return VerifyPlan.of(finished, setup, rounds=rounds, margin=margin, facts=provenance(setup.problem.software))
