"""Reads `job.toml`: what to train, on what, within which limits; every mistake is named with what to write instead."""

from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.errors import InputError, JobError, nearest
from oppa.problem.declaration import parse, validate
from oppa.problem.emptiness import require_some
from oppa.problem.job_file import JobFile, SpaceTable
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space import Facts, SearchSpace
from oppa.problem.space_file import narrow, read_space


def load_job(path: Path, *, runner_name: str | None = None) -> Problem:
    """The problem that a job file describes, with at least one valid configuration; `runner_name` goes before the file's own.

    Raises:
        JobError: for whatever is wrong in it.
        InputError: if the runner, the search space or a file of theirs is missing or wrong.
    """
    declared = parse(_read(path), source=path.name, error=JobError)
    if "replay" in declared:
        raise JobError(f"`{path.name}` is a search space file, whose tasks are replayed", hint="name one: `oppa tune FILE --task NAME`")
    job = validate(JobFile, declared, error=JobError)
    model, cluster, training = job.model.record(), job.cluster.record(), job.training.record(path.parent)
    named_here = job.runner.name if runner_name is None else runner_name
    runner = catalog.find("runners", named_here, beside=path.parent if runner_name is None else None)
    facts = facts_of(model, job.batch.global_batch, cluster, training)
    space = _space(job.space, facts, runner=runner, folder=path.parent)
    require_some(space)
    return Problem(
        name=job.name or path.stem,
        model=model,
        global_batch=job.batch.global_batch,
        cluster=cluster,
        runner=runner,
        training=training,
        space=space,
        limits=job.limits.record(),
        strategy=job.designer.record(),
    )


def _space(table: SpaceTable, facts: Facts, *, runner: Path, folder: Path) -> SearchSpace:
    """The search space that the job names, else the runner's; narrowed by the job and to what the runner honours."""
    declared = _runner(runner)
    name = table.name or str(declared.get("search_space", ""))
    if not name:
        raise JobError(
            f"the runner `{runner.name}` names no search space",
            hint=f"add `[space] name = ...`: {', '.join(catalog.names('search_spaces'))}",
        )
    file = catalog.find("search_spaces", name, beside=folder if table.name else runner)
    space = read_space(_read(file), name=file.stem, facts=facts)
    return narrow(space, table.parameters, honoured=declared.get("parameters", space.names), runner=runner.name)


def _runner(folder: Path) -> dict[str, Any]:
    """The runner's own declaration; `oppa.trials` reads the rest of it."""
    file = folder / "runner.toml"
    if not file.is_file():
        raise InputError(
            f"`{folder}` is no runner: it has no `runner.toml`",
            hint=f"use a folder that has one, or one of {', '.join(catalog.names('runners'))}",
        )
    return parse(_read(file), source=f"{folder.name}/runner.toml", error=InputError)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise JobError(f"`{path}` cannot be read: {reason}", hint=_readable(path)) from None


def _readable(path: Path) -> str:
    others = sorted(file.name for file in path.parent.glob("*.toml")) if path.parent.is_dir() else []
    return nearest(path.name, others) if others else "write one with `oppa init`"
