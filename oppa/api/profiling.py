"""Measure the table of a job, and its scale table."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import oppa
from oppa.api.jobs import Resume, load_job, problem_of, session_facts, session_folder
from oppa.api.torch_threads import torch_threads_kept
from oppa.errors import InputError
from oppa.problem.problem import Problem

if TYPE_CHECKING:
    from oppa.tuning.session import Setup


@torch_threads_kept()
def profile(
    job: str | Path | Problem,
    *,
    global_batch: str | Sequence[int],
    table: str | Path | None = None,
    exhaustive: bool = False,
    loss: float = 0.01,
    trials: int | None = None,
    wall_time_s: float | None = None,
    max_gpu_hours: float | None = None,
    seed: int = 0,
    callback: "oppa.SessionCallback | None" = None,
    resume: Resume | None = None,
) -> "oppa.ProfileResult":
    """Measure throughput and memory at every global batch, for all configurations that could change a decision.

    Args:
        job: A job file, or a problem.
        global_batch: Global batches in sequences: `"16..1024"` doubles, `"16,24,32"` lists, as a list does.
        table: Folder of the table and of its study: an existing one is resumed. None: a new one below `tables/`.
        exhaustive: Measure every configuration that may fit, instead of those that could change a decision.
        loss: Share of goodput; the profile ends when the expected loss is below it at every noise scale.
        trials: Largest number of trials of the whole table. None: no limit; the job's own limit is for `tune`.
        wall_time_s: Largest number of wall-clock seconds. None: no limit.
        max_gpu_hours: Hours of all devices together that the whole table may take. None: the job's own.
        seed: Seed of random choices.
        callback: Watches the session.
        resume: Returns the words after `oppa` that start further tuners on other hosts. None: this process measures alone.

    Raises:
        InputError: the job, the table or an argument is wrong, or the job has parallel trials and `resume` is None.
        InfeasibleError: no configuration could run; the study keeps the trials.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the profile; its table is valid, and the same call resumes it.
    """
    from oppa.tracking.session import tracked
    from oppa.tuning.nothing_feasible import nothing_feasible
    from oppa.tuning.outcomes import ProfileResult
    from oppa.tuning.profile import make_profiler
    from oppa.tuning.profile import profile as measure
    from oppa.tuning.session import SessionOptions, open_session

    limits = {"trials": trials, "wall_time_s": wall_time_s, "max_gpu_hours": max_gpu_hours}
    setup = _setup(job, global_batch, loss, limits, alone=resume is None)
    problem, candidates = setup.problem, setup.candidates
    folder, again = session_folder(problem, table, resume, among="tables")
    facts = session_facts(problem, "profile", resume, designer="complete" if exhaustive else "active", seed=seed)
    watched = tracked(problem, callback)
    options = SessionOptions(folder=folder, facts=facts, seed=seed, callback=watched, again=again, option="--table")
    profiler = make_profiler(problem, candidates, exhaustive=exhaustive, seed=seed, bound=loss)
    with open_session(setup, options, profiler) as executor:
        command, simulated = facts["command"].strip("`"), setup.runner.in_process
        found, ended = measure(executor, candidates, profiler, command=command, simulated=simulated)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return ProfileResult(folder=folder, ended=ended, table=found, exhaustive_s=profiler.seconds_of_all())


@torch_threads_kept()
def plan_profile(
    job: str | Path | Problem,
    *,
    global_batch: str | Sequence[int],
    table: str | Path | None = None,
    exhaustive: bool = False,
    loss: float = 0.01,
    trials: int | None = None,
    wall_time_s: float | None = None,
    max_gpu_hours: float | None = None,
    seed: int = 0,
) -> "oppa.ProfilePlan":
    """Return the plan of a profile with these arguments, as `oppa profile --dry-run` does; start nothing, and make no folder.

    The plan of a profile that resumes a table is about the rest of it.

    Raises:
        InputError: the job, the table or an argument is wrong.
        EnvironmentLackingError: a program, package or device is missing.
    """
    from oppa.tuning.profile import make_profiler
    from oppa.tuning.profile_plan import ProfilePlan
    from oppa.tuning.resumed_study import ResumedStudy

    limits = {"trials": trials, "wall_time_s": wall_time_s, "max_gpu_hours": max_gpu_hours}
    setup = _setup(job, global_batch, loss, limits, alone=True)
    resumed = ResumedStudy.of(Path(table), setup.problem, simulated=setup.runner.in_process) if table is not None else None
    profiler = make_profiler(setup.problem, setup.candidates, exhaustive=exhaustive, seed=seed, bound=loss)
    return ProfilePlan.of(setup, profiler, resumed)


def _setup(
    job: str | Path | Problem, global_batch: str | Sequence[int], loss: float, limits: Mapping[str, float | None], *, alone: bool
) -> "Setup":
    """Return the setup of a profile.

    Raises:
        InputError: the job, a batch, `loss` or a limit is wrong.
        EnvironmentLackingError: a program, package or device is missing.
    """
    from oppa.tracking.session import require_trackers
    from oppa.tuning.session import Setup, with_limits

    if not 0 < loss < 1:
        raise InputError(f"`loss = {loss:g}` is not a share", hint="use a number between 0 and 1, such as 0.01 for 1%")
    problem = with_limits(_over_batches(job, global_batch), **limits)
    require_trackers(problem.tracking)
    return Setup.of(problem, None, alone=alone)


@torch_threads_kept()
def profile_scales(
    job: str | Path,
    *,
    devices: tuple[int, int],
    table: str | Path,
    measure: str = "",
    settings: Sequence[str] = (),
    command: Sequence[str] = (),
    callback: "oppa.SessionCallback | None" = None,
) -> "oppa.ScaleProfile":
    """Measure how a job scales on a few numbers of devices, predict the others with the error of the prediction, and write a scale table.

    Args:
        job: A job file.
        devices: First and last number of devices; the sizes are the numbers of whole hosts between them.
        table: Folder of the scale table; the profile of each measured size is in a folder below it, which another call resumes.
        measure: Sizes to measure, such as `"2,4,8"`; a few at equal ratios unless given.
        settings: Changes of the job's keys. `limits.trials` and `limits.wall_time` limit the profile of each size.
        command: The user's own launch line; it replaces that of the file's `[command]`.
        callback: Watches the profile of each size.

    Raises:
        InputError: the job, the range or `measure` is wrong.
        InfeasibleError: no configuration of a size could run.
        EnvironmentLackingError: a program or a package is missing, or the hosts of a size, which are checked before the first trial.
        KeyboardInterrupt: the user stopped it; the same call resumes it.
    """
    from oppa.problem.settings import parse_settings
    from oppa.table import Table
    from oppa.tuning.scale_profile import ScaleProfile, measured_sizes, origin_of, problems_of, scale_entries
    from oppa.tuning.session import require_hosts

    def on(hosts: int) -> Problem:
        return load_job(job, settings=[*settings, f"cluster.hosts={hosts}"], command=command)

    problem, folder = load_job(job, settings=settings, command=command), Path(table)
    problems, limits = problems_of(problem, *devices, on), parse_settings(settings).get("limits", {})
    trials, wall_s = problem.limits.trials, problem.limits.wall_time_s
    sizes, tables = measured_sizes([*problems], measure), {}
    for size in sizes:
        require_hosts(problems[size])
    for size in sizes:
        tables[size] = profile(
            problems[size],
            global_batch=[problem.global_batch],
            table=folder / f"{size}-devices",
            trials=trials if "trials" in limits else None,
            wall_time_s=wall_s if "wall_time" in limits else None,
            callback=callback,
        ).table
    entries, law = scale_entries(problems, tables)
    origin = origin_of(problem, [each.origin for each in tables.values()])
    Table(rows=tuple(entry.row for entry in entries if not entry.left_out), origin=origin).write(folder)
    return ScaleProfile(folder=folder, entries=tuple(entries), law=law)


def _over_batches(job: str | Path | Problem, global_batch: str | Sequence[int]) -> Problem:
    """Return the problem over several batches, without the job's own limits of trials and time, which are for `tune`."""
    from oppa.problem.batches import FORMS, over, parse_batches
    from oppa.tuning.session import require_whole

    batches = parse_batches(global_batch) if isinstance(global_batch, str) else tuple(global_batch)
    if not batches:
        raise InputError("`global_batch` names no batch", hint=FORMS)
    for batch in batches:
        require_whole("global_batch", batch, least=1)
    problem = over(problem_of(job), batches)
    return dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, trials=None, wall_time_s=None))
