"""Search for the fastest configuration of a job, or plan the search."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import oppa
from oppa.api.jobs import Resume, problem_of, session_facts, session_folder
from oppa.api.torch_threads import torch_threads_kept
from oppa.errors import EnvironmentLackingError
from oppa.problem.problem import Problem
from oppa.tuning import designers

if TYPE_CHECKING:
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.session import SessionOptions, Setup
    from oppa.tuning.transfer import TransferredPrior


@torch_threads_kept()
def tune(
    job: "str | Path | Problem | oppa.BenchmarkTask | oppa.LineJob",
    *,
    study: str | Path | None = None,
    trials: int | None = None,
    max_gpu_hours: float | None = None,
    designer: str = designers.DEFAULT,
    seed: int = 0,
    launcher: str | None = None,
    callback: "oppa.SessionCallback | None" = None,
    resume: Resume | None = None,
) -> "oppa.SearchResult":
    """Find the fastest configuration of a job by short real trials, and verify it by repeats.

    Args:
        job: A job file, a problem, the job of a launch line, or a task whose trials are simulated.
        study: Folder of the study: an existing one is resumed. None: a new one below `studies/`.
        trials: Number of search trials of the whole study. None: the job's own.
        max_gpu_hours: Hours of all devices together that the whole study may take, verification included. None: the job's own.
        designer: Name of the designer.
        seed: Seed of the designer's random choices.
        launcher: Name of the launcher. None: the job's own.
        callback: Watches the session.
        resume: Returns the words after `oppa` that start further tuners on other hosts. None: this process tunes alone.

    Raises:
        InputError: the job, the study or an argument is wrong, or the job has parallel trials and `resume` is None.
        InfeasibleError: no configuration could run; the study keeps the trials.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the search, which the same study resumes.
    """
    from oppa.tracking.session import tracked
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.plan import expectation, is_expected
    from oppa.tuning.session import SessionOptions, require_whole

    require_whole("seed", seed, least=0)
    setup = _setup(job, designer, launcher, study=study, alone=resume is None, trials=trials, max_gpu_hours=max_gpu_hours)
    problem = setup.problem
    transfer = _transferred(problem, study)  # before a folder is made, which would stay empty if this fails
    folder, again = session_folder(problem, study, resume, among="studies", launcher=launcher)
    facts = session_facts(problem, "tune", resume, designer=designer, seed=seed)
    beliefs = transfer.beliefs if transfer else None
    facts |= {"transfer": "; ".join(text for _, text in transfer.lines)} if transfer else {}
    expected = expectation(setup, designer, beliefs) if callback is not None and is_expected(problem, designer) else None
    watched = tracked(problem, callback)
    options = SessionOptions(folder=folder, facts=facts, seed=seed, callback=watched, again=again, expected=expected, transfer=transfer)
    if problem.proxy is not None:
        from oppa.tuning.proxy.ladder import climb

        return climb(setup, dataclasses.replace(options, again=(), expected=None), designer, beliefs)
    return _searched(setup, options, designer, line=job if isinstance(job, LineJob) else None)


def _searched(setup: "Setup", options: "SessionOptions", designer: str, *, line: "LineJob | None") -> "oppa.SearchResult":
    """Search at full size, and verify the winner; the study keeps the job of a launch line."""
    from oppa.tuning.nothing_feasible import nothing_feasible
    from oppa.tuning.outcomes import SearchResult
    from oppa.tuning.session import open_session
    from oppa.tuning.stopping import make_rule
    from oppa.tuning.winner import search_and_verify

    problem, candidates = setup.problem, setup.candidates
    beliefs = options.transfer.beliefs if options.transfer else None
    with open_session(setup, options) as executor:
        if line is not None:
            line.store(executor.study.folder)
        made = designers.make_designer(designer, problem, candidates, seed=options.seed, beliefs=beliefs)
        stopping = problem.search_options.stopping or designers.default_stopping(designer)
        rule = make_rule(stopping, problem.limits, in_seconds=problem.rates_are_steps)
        ended, found = search_and_verify(executor, candidates, made, rule, watches_drift=executor.is_alone, ends_unpaid=True)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return SearchResult.of(executor, found, ended)


@torch_threads_kept()
def plan(
    job: "str | Path | Problem | oppa.BenchmarkTask | oppa.LineJob",
    *,
    study: str | Path | None = None,
    trials: int | None = None,
    max_gpu_hours: float | None = None,
    designer: str = designers.DEFAULT,
    seed: int = 0,
    launcher: str | None = None,
) -> "oppa.TunePlan":
    """Return the plan of a search with these arguments, as `oppa tune --dry-run` does; start nothing, and make no folder.

    The job of a launch line has a plan also where its trials cannot start, such as that of a cluster on another machine.
    The plan of a search that resumes a study is about the rest of it.

    Raises:
        InputError: the job, the study or an argument is wrong.
        EnvironmentLackingError: a program, package or device is missing.
    """
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.plan import make_plan, plan_elsewhere
    from oppa.tuning.session import require_whole, with_limits

    require_whole("seed", seed, least=0)
    try:
        setup = _setup(job, designer, launcher, study=study, alone=True, trials=trials, max_gpu_hours=max_gpu_hours)
    except EnvironmentLackingError as error:
        if not isinstance(job, LineJob):
            raise
        return plan_elsewhere(with_limits(job.problem, trials=trials, max_gpu_hours=max_gpu_hours), designer, error.message)
    folder = None if study is None else Path(study)
    return make_plan(setup, designer, seed=seed, transfer=_transferred(setup.problem, study), folder=folder)


def _setup(
    job: "str | Path | Problem | oppa.BenchmarkTask | oppa.LineJob",
    designer: str,
    launcher: str | None,
    *,
    study: str | Path | None,
    alone: bool,
    **limits: float | None,
) -> "Setup":
    """Return the setup of a search, with those limits changed that are not None.

    The launch line of a study that exists is checked where the study is opened.

    Raises:
        InputError: the designer is unknown, a limit is wrong, the script of the launch line does not exist, or what `Setup.of` raises.
    """
    from oppa.launchers.provider import LOCAL
    from oppa.tracking.session import require_trackers
    from oppa.trials.line_script import require_script
    from oppa.tuning.session import Setup, with_limits

    designers.require_designer(designer)
    simulator = getattr(job, "simulator", None)
    problem = with_limits(problem_of(getattr(job, "problem", job)), **limits)
    require_trackers(problem.tracking)
    setup = Setup.of(problem, launcher, alone=alone, simulator=simulator)
    is_new = study is None or not Path(study).exists()
    if problem.command is not None and is_new and not setup.runner.in_process:
        require_script(problem.command, on_this_host=setup.request.launcher == LOCAL)
    return setup


def _transferred(problem: Problem, study: str | Path | None) -> "TransferredPrior | None":
    """Return what the studies under `[designer] transfer` learned, without the search's own `study`; None if the job names no study."""
    if not problem.search_options.transfer:
        return None
    from oppa.tuning.transfer import transferred

    return transferred(problem, own=None if study is None else Path(study))
