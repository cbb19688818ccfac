"""`oppa import FILE --from deepspeed`: make the user's present configuration the baseline of a job."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from oppa.problem.configuration import Configuration, Value
    from oppa.problem.problem import Problem
    from oppa.tuning.formats.adoption import Draft, Take
    from oppa.tuning.formats.format import Reading

SOURCE = "The framework's file, or a folder with its files."
FORMAT = "deepspeed, megatron, accelerate, transformers or lightning; or any format that `oppa export` writes."
JOB = "Job that the file configures; without one, a new job is made from the file."
VALUES = "Values that the file does not state: `pp=2,micro_batch=4`."
TAKE = "`file` or `job`: the source of truth where they differ in model, batch, devices, precision or search space."
OUT = "Write the job with the table to this file, instead of printing the table."


def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help=SOURCE, show_default=False)],
    origin: Annotated[str, typer.Option("--from", metavar="FORMAT", help=FORMAT, show_default=False)],
    job: Annotated[Path | None, typer.Option("--job", metavar="JOB", help=JOB, show_default=False)] = None,
    values: Annotated[str, typer.Option("--values", metavar="NAME=VALUE,...", help=VALUES)] = "",
    take: Annotated[str, typer.Option("--take", metavar="file|job", help=TAKE)] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the configuration and what was ignored as JSON.")] = False,
) -> None:
    """Read a framework's configuration as `\\[baseline]` of a job: its first trial, and the winner's reference.

    A job without a runner gets the framework's runner and search space.
    If file and job differ, an error names both values, and --take chooses one.
    With --job, the command prints the tables to append to it; without, a whole job.

    Exit codes: 0 read, 2 wrong input, 3 environment lacking.
    """
    from oppa.cli.views import style
    from oppa.errors import InputError
    from oppa.plain_text import one_line, plain_text
    from oppa.problem.baseline import table

    if take not in ("", "file", "job"):
        raise InputError(f"`--take {take}` is unknown", hint="use `file` or `job`")
    files = _files(source, origin)
    draft, reading = _adopted(job, files, origin, source, cast("Take | None", take or None))
    problem = draft.problem()
    configuration, notes = _configuration(problem, reading, values, origin)
    notes = [*draft.notes, *notes]
    if as_json:
        chosen = {"runner": problem.runner.name, "space": problem.space.name}
        style.print_json({"baseline": configuration.to_dict(), "ignored": list(reading.ignored), "notes": notes, **chosen})
    else:
        lines = [f"{configuration.id}, from {source}", *notes, *(f"ignored: {text}" for text in reading.ignored)]
        style.err().print(plain_text("\n".join(lines)) + "\n", markup=False)
    block = f"# From {one_line(source.name)} ({origin}).\n{table(problem.space, configuration)}"
    if out is not None:
        _write(out, problem, draft, block, force=force)
        style.err().print(f"written: {out}\n\n  oppa tune {out}", markup=False)
    elif not as_json:
        if job is not None and draft.rewritten:
            raise InputError(
                f"lines of `{job}` itself must change, as the notes above state", hint="write the changed job to another file: `--out FILE`"
            )
        tables = draft.text if job is None else draft.added
        typer.echo(f"{tables.rstrip()}\n\n{block}" if tables else block, nl=False)


def _adopted(job: Path | None, files: "Mapping[str, str]", origin: str, source: Path, take: "Take | None") -> "tuple[Draft, Reading]":
    """Return the draft of the job that the files configure, and the settings that they state."""
    from oppa.tuning.formats import read
    from oppa.tuning.formats.adoption import completed, new_job, settled
    from oppa.tuning.formats.job_facts import facts_of

    facts = facts_of(origin, files)
    draft = completed(job, facts, origin=origin) if job else new_job(Path("job.toml"), facts, origin=origin, source=source.name)
    reading = read(origin, draft.problem(), files)
    draft = settled(draft, facts, reading, origin=origin, take=take)
    reading = read(origin, draft.problem(), files)  # read again, because devices and layers may have changed
    if unread := [f"its value is not in the file: {words}" for words in facts.unread]:
        draft = dataclasses.replace(draft, notes=(*draft.notes, *unread))
    return draft, reading


def _files(source: Path, origin: str) -> dict[str, str]:
    """Return the texts of a file, or of a folder's files that the format writes, by name; raises InputError for an unreadable file."""
    from oppa.problem.bounded_text import read_text
    from oppa.tuning.formats import format_named

    names = format_named(origin).FILES
    paths = [source / name for name in names if (source / name).exists()] if os.path.isdir(source) else [source]  # noqa: PTH112 (no OSError)
    return {path.name: read_text(path, hint=f"give a file of {origin}, with text in UTF-8") for path in paths}


def _configuration(problem: "Problem", reading: "Reading", values: str, origin: str) -> "tuple[Configuration, list[str]]":
    """Return the file's configuration, made legal, and notes on the changes.

    Raises:
        InputError: the file lacks a value, or states one that is not in the search space.
    """
    from oppa.errors import InputError
    from oppa.problem.baseline import at_rest, complete, require_legal
    from oppa.problem.selector import values_of
    from oppa.tuning.formats.adoption import unnamed_knobs

    chosen = values_of(values, problem.space) if values else {}
    unnamed = {name: value for name, value in unnamed_knobs(problem, reading).items() if name not in chosen}
    usual = {name: problem.space[name].default for name in unnamed}
    settings = {**reading.settings, **usual, "global_batch": problem.global_batch, **chosen}
    if "micro_batch" not in settings:
        raise InputError(f"the {origin} file does not state the micro-batch", hint="add `--values micro_batch=...`, in sequences per rank")
    said = complete(problem.space, settings)
    configuration = require_legal(problem.space, at_rest(problem.space, said))
    left_out = [
        f"left out: {name} = {_spelled(value)}, which the job's launch line does not name; the baseline has {_spelled(usual[name])}"
        for name, value in unnamed.items()
    ]
    return configuration, [*left_out, *_notes(problem, settings, said, configuration)]


def _notes(problem: "Problem", settings: "Mapping[str, Value]", said: "Configuration", meant: "Configuration") -> list[str]:
    """Return a note for each setting of the file that the configuration changes or ignores."""
    from oppa.problem.baseline import ROUNDED, alike

    notes = []
    for name, value in settings.items():
        if name not in problem.space.names:
            if name != "global_batch" and value != meant[name]:
                notes.append(f"ignored: {name} = {value}, which `{problem.space.name}` cannot vary")
            continue
        asked, taken = said[name], meant[name]
        if name in ROUNDED and taken != problem.space[name].default and not alike(name, asked, taken):
            notes.append(f"rounded: {name} = {asked:.4g} is {taken} in the search space")
        elif name not in ROUNDED and asked != taken:
            notes.append(f"ignored: {name} = {asked}, which has no effect here")
    return notes


def _spelled(value: "Value") -> str:
    """Return a value as a job file spells it; a bucket size has four digits."""
    from oppa.problem.declaration import spell

    return f"{value:.4g}" if isinstance(value, float) else spell(value)


def _write(out: Path, problem: "Problem", draft: "Draft", block: str, *, force: bool) -> None:
    """Write the job's text followed by the table.

    Raises:
        InputError: the job has a baseline, the file exists and `force` is not given, or it cannot be written or read again.
    """
    from oppa.errors import InputError
    from oppa.problem.job import load_job
    from oppa.report.text_file import write_bytes

    if problem.baseline is not None:
        raise InputError(
            f"`{draft.path}` already has a `[baseline]`", hint="remove it there, or run without --out and edit the job yourself"
        )
    text = f"{draft.text.rstrip()}\n\n{block}"
    load_job(out, text=text)  # what is written can be read again
    try:
        write_bytes(out, text.encode(), exclusive=not force)
    except FileExistsError:
        raise InputError(f"`{out}` exists", hint="name another file, or overwrite it with --force") from None
