"""Read `job.toml`: the model, the cluster and the limits. Every error names what to write instead."""

from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ConfigDict

from oppa import catalog
from oppa.errors import InputError, JobError, nearest
from oppa.problem.baseline import declared as declared_baseline
from oppa.problem.bounded_text import read_text
from oppa.problem.command import LaunchCommand
from oppa.problem.command_table import CommandTable
from oppa.problem.declaration import DeclaredTable, OptionalName, parse, read
from oppa.problem.infeasibility import require_some
from oppa.problem.job_file import JobFile, SearchSpaceTable
from oppa.problem.problem import Problem, facts_of
from oppa.problem.settings import parse_settings, validate_with
from oppa.problem.space import Facts, SearchSpace
from oppa.problem.space_file import narrow, read_space

COMMAND = "command"
"""Name of the runner for the user's own launch line."""


def load_job(path: Path, *, text: str | None = None, settings: Sequence[str] = (), argv: Sequence[str] = ()) -> Problem:
    """Return the problem that a job file describes, with at least one valid configuration.

    Args:
        text: Text of the file; None: it is read from `path`.
        settings: Changes of keys before anything is validated, such as `limits.trials=20`. If one changes `cluster.hosts`, the file's
            `[baseline]` is omitted, because it is for the file's own number.
        argv: Launch line of the user's own program; it replaces that of the file's `[command]`.

    Raises:
        JobError: something in the file is wrong.
        InputError: the runner, the search space or one of their files is missing or wrong.
    """
    declared = parse(read_job(path) if text is None else text, source=path.name, error=JobError)
    if "replay" in declared:
        raise JobError(
            f"`{path.name}` is a search space file, whose tasks are replayed", hint="name a task: `oppa tune FILE --set task=NAME`"
        )
    if "hosts" in parse_settings(settings).get("cluster", {}):
        declared.pop("baseline", None)
    job = validate_with(JobFile, declared, settings, error=JobError)
    model, cluster, training = job.model.record(path.parent), job.cluster.record(), job.training.record(path.parent)
    command = _command(job, argv, path.parent)
    runner = catalog.find("runners", COMMAND if command else job.runner.name, base=path.parent)
    facts = facts_of(model, job.batch.global_batch, cluster, training)
    space = _space(job.space, facts, runner=runner, folder=path.parent, used=command.parameters if command else None)
    require_some(space)
    return Problem(
        name=job.name or path.stem,
        model=model,
        global_batch=job.batch.global_batch,
        cluster=cluster,
        runner=runner,
        command=command,
        training=training,
        space=space,
        limits=job.limits.record(),
        run_options=job.train.record(training.optimizer),
        search_options=job.designer.record(path.parent),
        launcher=job.launcher.record(),
        baseline=declared_baseline(space, job.baseline) if job.baseline is not None else None,
    )


def _command(job: JobFile, argv: Sequence[str], folder: Path) -> LaunchCommand | None:
    """Return the user's own launch line, None if there is none."""
    table = job.command or (CommandTable() if argv else None)
    if table is None:
        if job.runner.name == COMMAND:
            raise JobError("there is no command to run", hint="give it after `--`, or as `argv = [...]` in [command]")
        return None
    named = job.runner.name if "name" in job.runner.model_fields_set else COMMAND
    if named != COMMAND:
        raise JobError(f"the runner `{named}` cannot start a command of your own", hint="remove either the runner or the command")
    return table.record(argv, folder)


def _space(table: SearchSpaceTable, facts: Facts, *, runner: Path, folder: Path, used: Collection[str] | None) -> SearchSpace:
    """Return the search space that the job names, else the runner's.

    It is narrowed to the job's choices, and to the parameters that the runner honours or the command uses.
    """
    declared = _runner(runner)
    name = table.name or declared.search_space
    if not name:
        raise JobError(
            f"the runner `{runner.name}` names no search space",
            hint=f"add `[space] name = ...`: {', '.join(catalog.names('search_spaces'))}",
        )
    file = catalog.find("search_spaces", name, base=folder if table.name else runner)
    space = read_space(read_text(file, error=JobError), name=file.stem, facts=facts)
    honoured = used if used is not None else space.names if declared.parameters is None else declared.parameters
    return narrow(space, table.parameters, honoured=honoured, runner=runner.name)


class _RunnerTable(DeclaredTable):
    """Validates what a runner declares about its search space; `oppa.trials` reads the rest."""

    model_config = ConfigDict(extra="ignore")
    search_space: OptionalName = ""
    parameters: list[str] | None = None


def _runner(folder: Path) -> _RunnerTable:
    """Return the runner's own declaration."""
    file = folder / "runner.toml"
    if not file.is_file():
        raise InputError(
            f"`{folder}` is not a runner: it has no `runner.toml`",
            hint=f"use a folder that has one, or one of {', '.join(catalog.names('runners'))}",
        )
    return read(_RunnerTable, file, error=InputError)


def read_job(path: Path) -> str:
    """Return the text of a job file; raises JobError, which names the nearest file if there is none."""
    try:
        others = [] if path.exists() else sorted(file.name for file in path.parent.glob("*.toml"))
        hint = "" if path.exists() else nearest(path.name, others) if others else "write one with `oppa init`"
    except OSError:
        hint = ""
    return read_text(path, error=JobError, hint=hint)
