"""Measure the table of a job."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.api.jobs import Resume, problem_of, session_facts
from oppa.errors import InputError
from oppa.problem.problem import Problem

if TYPE_CHECKING:
    from oppa.tuning.outcomes import ProfileResult
    from oppa.tuning.session import Callback


def profile(
    job: str | Path | Problem,
    *,
    global_batch: str | Sequence[int],
    table: str | Path,
    exhaustive: bool = False,
    loss: float = 0.01,
    trials: int | None = None,
    wall_time_s: float | None = None,
    max_gpu_hours: float | None = None,
    seed: int = 0,
    callback: "Callback | None" = None,
    resume: Resume | None = None,
) -> "ProfileResult":
    """Measure throughput and memory at every global batch, for all configurations that could change a decision.

    Args:
        job: A job file, or a problem.
        global_batch: Global batches in sequences: `"16..1024"` doubles, `"16,24,32"` lists, as a list does.
        table: Folder of the table and of its study: an existing one is resumed.
        exhaustive: Measure every configuration that may fit, instead of those that could change a decision.
        loss: Share of goodput; the profile ends when the expected loss is below it at every noise scale.
        trials: Largest number of trials of the whole table. None: no limit; the job's own limit is for `tune`.
        wall_time_s: Largest number of wall-clock seconds. None: no limit.
        max_gpu_hours: Hours of all devices together that the whole table may take. None: the job's own.
        seed: Seed of random choices.
        callback: Watches the session.
        resume: Returns the words after `oppa` that start further tuners on other hosts. None: this process measures alone.

    Raises:
        InputError: the job, the table or an argument is wrong.
        InfeasibleError: no configuration could run; the study keeps the trials.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the profile; its table is valid, and the same call resumes it.
    """
    from oppa.tracking.session import require_trackers, tracked
    from oppa.tuning.nothing_feasible import nothing_feasible
    from oppa.tuning.outcomes import ProfileResult
    from oppa.tuning.profile import Keeper, make_profiler, seconds_of_all
    from oppa.tuning.profile import profile as measure
    from oppa.tuning.session import SessionOptions, Setup, open_session, with_limits

    if not 0 < loss < 1:
        raise InputError(f"`loss = {loss:g}` is not a share", hint="use a number between 0 and 1, such as 0.01 for 1%")
    problem = with_limits(_over_batches(job, global_batch), trials=trials, wall_time_s=wall_time_s, max_gpu_hours=max_gpu_hours)
    require_trackers(problem.tracking)
    setup = Setup.of(problem, None, alone=resume is None)
    problem, candidates, folder = setup.problem, setup.candidates, Path(table)
    facts = session_facts(problem, "profile", resume, designer="complete" if exhaustive else "active", seed=seed)
    again = resume(folder) if resume else ()
    watched = tracked(problem, callback)
    options = SessionOptions(folder=folder, facts=facts, seed=seed, callback=watched, again=again, option="--table")
    profiler = make_profiler(problem, candidates, exhaustive=exhaustive, seed=seed, bound=loss)
    with open_session(setup, options, profiler) as executor:
        keeper = Keeper(executor, candidates, profiler, bound=loss, command=facts["command"].strip("`"), simulated=setup.runner.in_process)
        found, ended = measure(executor, candidates, profiler, keeper)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return ProfileResult(folder=folder, ended=ended, table=found, exhaustive_s=seconds_of_all(profiler))


def _over_batches(job: str | Path | Problem, global_batch: str | Sequence[int]) -> Problem:
    """Return the problem over several batches, without the job's own limits of trials and time, which are for `tune`."""
    from oppa.problem.batches import over, parse_batches

    batches = parse_batches(global_batch) if isinstance(global_batch, str) else tuple(global_batch)
    problem = over(problem_of(job), batches)
    return dataclasses.replace(problem, limits=dataclasses.replace(problem.limits, trials=None, wall_time_s=None))
