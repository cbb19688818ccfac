"""`oppa import FILE --from deepspeed --job JOB`: what the user runs at present becomes the baseline of a job."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from oppa.problem.configuration import Configuration
    from oppa.problem.problem import Problem
    from oppa.problem.space import Value
    from oppa.tuning.formats.format import Reading

SOURCE = "The framework's file, or a folder with its files."
FORMAT = "deepspeed, megatron or accelerate; or any that `oppa export` writes."
JOB = "The job that it configures: model, batch, devices."
SETTING = "What the file leaves open: `pp=2,micro_batch=4`."
OUT = "Write the job with the table there, instead of the table to stdout."


def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help=SOURCE, show_default=False)],
    origin: Annotated[str, typer.Option("--from", metavar="FORMAT", help=FORMAT, show_default=False)],
    job: Annotated[Path, typer.Option("--job", metavar="JOB", help=JOB, show_default=False)],
    setting: Annotated[str, typer.Option("--set", metavar="SETTING", help=SETTING)] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the configuration and what was ignored as JSON.")] = False,
) -> None:
    """Read a framework's configuration as `\\[baseline]` of a job: its first trial, and what the winner is compared with."""
    from oppa.cli import style
    from oppa.problem.baseline import table
    from oppa.problem.job import load_job
    from oppa.tuning.formats import format_named

    problem = load_job(job)
    reading = format_named(origin).parse(problem, _files(source, origin))
    configuration, notes = _configuration(problem, reading, setting, origin)
    if as_json:
        typer.echo(json.dumps({"baseline": configuration.to_dict(), "ignored": list(reading.ignored), "notes": notes}, indent=1))
    else:
        lines = [f"{configuration.id}, from {source}", *notes, *(f"ignored: {text}" for text in reading.ignored)]
        style.err().print("\n".join(lines) + "\n", markup=False)
    block = f"# From {source.name} ({origin}).\n{table(problem.space, configuration)}"
    if out is not None:
        _write(out, job, problem, block, force=force)
        style.err().print(f"written: {out}\n\n  oppa tune {out}", markup=False)
    elif not as_json:
        typer.echo(block, nl=False)


def _files(source: Path, origin: str) -> dict[str, str]:
    """The texts by name: of a file, or of those in a folder that the format writes."""
    from oppa.errors import InputError
    from oppa.tuning.formats import format_named

    paths = [source / name for name in format_named(origin).FILES if (source / name).is_file()] if source.is_dir() else [source]
    try:
        return {path.name: path.read_text() for path in paths}
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"`{source}` cannot be read: {reason}", hint=f"give a file of {origin}") from None


def _configuration(problem: "Problem", reading: "Reading", setting: str, origin: str) -> "tuple[Configuration, list[str]]":
    """The legal configuration that is meant, and what was done to make it one.

    Raises:
        InputError: for another batch than the job's, for what the file leaves open, and for what is not in the search space.
    """
    from oppa.errors import InputError
    from oppa.problem.baseline import at_rest, complete, require_legal
    from oppa.problem.setting import values_of

    settings = dict(reading.settings)
    if (batch := settings.get("global_batch", problem.global_batch)) != problem.global_batch:
        hint = f"set `global_batch = {batch}` under [batch], or correct the file"
        raise InputError(f"the file has a global batch of {batch}, the job of {problem.global_batch}", hint=hint)
    settings |= values_of(setting, problem.space) if setting else {}
    if "micro_batch" not in settings:
        raise InputError(f"the {origin} file does not say the micro-batch", hint="say it: `--set micro_batch=...`, sequences per rank")
    said = complete(problem.space, settings)
    configuration = require_legal(problem.space, at_rest(problem.space, said))
    return configuration, _notes(problem, settings, said, configuration)


def _notes(problem: "Problem", settings: "Mapping[str, Value]", said: "Configuration", meant: "Configuration") -> list[str]:
    """Where the configuration is not, to the letter, what the file says."""
    from oppa.problem.baseline import ROUNDED

    notes = []
    for name, value in settings.items():
        if name not in problem.space.names:
            if name != "global_batch" and value != getattr(meant, name):
                notes.append(f"ignored: {name} = {value}, which `{problem.space.name}` cannot vary")
            continue
        asked, taken = getattr(said, name), getattr(meant, name)
        if name in ROUNDED and taken != problem.space[name].default and abs(asked / taken - 1) > 0.01:
            notes.append(f"rounded: {name} = {asked:.4g} is {taken} in the search space")
        elif name not in ROUNDED and asked != taken:
            notes.append(f"ignored: {name} = {asked}, which does not matter here")
    return notes


def _write(out: Path, job: Path, problem: "Problem", block: str, *, force: bool) -> None:
    """The job's own text with the table behind it."""
    from oppa.errors import InputError

    if problem.baseline is not None:
        raise InputError(f"`{job}` has a `[baseline]` already", hint="remove it there, or leave out --out and edit it yourself")
    if out.exists() and not force:
        raise InputError(f"`{out}` exists", hint="name another file, or overwrite it with --force")
    try:
        out.write_text(f"{job.read_text().rstrip()}\n\n{block}")
    except OSError as error:
        raise InputError(f"`{out}` cannot be written: {error.strerror}", hint="name a file in a folder that exists and is yours") from None
