"""Train a job to its end."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import oppa
from oppa.api.jobs import load_job
from oppa.errors import InputError
from oppa.problem.job import has_command
from oppa.problem.problem import Problem

if TYPE_CHECKING:
    from oppa.control.training_session.options import TrainOptions
    from oppa.problem.configuration import Configuration
    from oppa.table import Table


def train(
    job: str | Path | Problem,
    configuration: "str | oppa.Configuration" = "",
    *,
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    command: Sequence[str] = (),
    table: str | Path | None = None,
    policy: str = "",
    weights: str | Path | None = None,
    eval_runs: Sequence[str | Path] = (),
    control: str = "",
    callback: "oppa.TrainCallback | None" = None,
    tell: Callable[[str], None] = lambda _: None,
) -> "oppa.TrainResult":
    """Train a job to its end; restart ranks that die from the newest checkpoint.

    Args:
        job: A job file, the folder of a study, whose winner is trained, or a problem.
        configuration: A configuration, its id, some values such as `dp=2,micro_batch=4`, or a JSON file. Empty: the study's winner, the
            job's baseline, the table's fastest, or the default.
        run: Folder of the run: an existing one resumes from its newest checkpoint. None: a new one below `runs/`.
        settings: Changes of the job's keys, such as `train.samples=6400`.
        command: Launch line of the user's own trainer, which opens its run; it replaces that of the file's `[command]`.
        table: Folder of the table from which a policy chooses; its copy in the run's folder is refined by step times.
        policy: Name of the policy, with its settings. Empty: batch size and layout stay fixed.
        weights: File of a learned policy.
        eval_runs: Folders of recorded runs that evaluate a learned policy.
        control: A running control service, `JOB@127.0.0.1:PORT`. Empty: the run starts one if it has a policy.
        callback: Watches the run.
        tell: Called with the result of a learned policy's evaluation.

    Raises:
        InputError: the job, the run or an argument is wrong.
        EnvironmentLackingError: a program, package or device is missing.
        KeyboardInterrupt: the user stopped the run before its first step. Later, Ctrl-C saves a checkpoint and returns.
    """
    from oppa.control.policy_choice import PolicyChoice
    from oppa.control.service.address import ServiceAddress
    from oppa.control.training_session.options import train_options
    from oppa.control.training_session.training import supervised
    from oppa.table import Table
    from oppa.tracking.session import require_trackers, tracked_run

    profiled = Table.read(Path(table)) if table else None
    if profiled and not command and not isinstance(job, Problem):
        _require_launch_line(profiled, Path(job), settings)
    problem, asked, usual = _resolved(*_source(job, settings, command), configuration, profiled)
    require_trackers(problem.tracking)
    problem, options = train_options(
        problem,
        asked=asked,
        usual=usual,
        table=profiled,
        schedules=Path(table) if table else None,
        control=ServiceAddress.parse(control) if control else None,
        choice=PolicyChoice(text=policy, weights=Path(weights) if weights else None, eval_runs=[*map(Path, eval_runs)]),
        tell=tell,
    )
    return supervised(problem, options, _run_folder(problem, options, run), tracked_run(problem, callback))


def _source(job: str | Path | Problem, settings: Sequence[str], command: Sequence[str]) -> tuple[Path | Problem, Sequence[str]]:
    """Return the job and the settings that are left to apply; a launch line is part of the job."""
    source = job if isinstance(job, Problem) else Path(job)
    if not command:
        return source, settings
    if isinstance(source, Problem) or source.is_dir():
        raise InputError(f"`{shlex.join(command)}` needs a job file", hint="name the job file, or remove the launch line")
    return load_job(source, settings=settings, command=command), ()


def _require_launch_line(table: "Table", job: Path, settings: Sequence[str]) -> None:
    """Raise TableError if a table is that of a launch line, and neither the job file nor a setting has one."""
    from oppa.tuning.resolve_configuration import is_json

    if "command" in table.origin.problem and job.is_file() and not is_json(job):
        table.origin.require_launch_line(is_given=any(each.startswith("command.") for each in settings) or has_command(job))


def _resolved(
    source: Path | Problem, settings: Sequence[str], configuration: "str | Configuration", table: "Table | None"
) -> "tuple[Problem, Configuration | None, Configuration | None]":
    """Return the problem, the configuration that the caller asked for, if any, and the usual one."""
    from oppa.tuning.resolve_configuration import resolve_with_table

    named = configuration if isinstance(configuration, str) else ""
    problem, usual = resolve_with_table(source, named, table, changes=settings)
    if not isinstance(configuration, str):
        return problem, configuration, configuration
    is_asked = named or (isinstance(source, Path) and source.is_dir())
    return problem, usual if is_asked else None, usual


def _run_folder(problem: Problem, options: "TrainOptions", run: str | Path | None) -> Path:
    """Return the folder of a run; raises InputError before there is one if a new run cannot begin."""
    from oppa.control.training_session.opened_run import first_configuration
    from oppa.tuning.session import new_folder

    if run is None or not Path(run).exists():
        first_configuration(problem, options)
    return Path(run) if run is not None else new_folder(problem.name, among="runs")
