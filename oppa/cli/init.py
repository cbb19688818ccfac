"""`oppa init`: write a job file from what the machine is."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    path: Annotated[Path, typer.Argument(metavar="[JOB]", help="The file to write.")] = Path("job.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a job.toml for this machine, ready for `oppa tune`."""
    from oppa.cli import style
    from oppa.errors import InputError
    from oppa.problem.machine import suggest_job

    if path.exists() and not force:
        raise InputError(f"`{path}` exists", hint="name another file, or overwrite it with --force")
    text = suggest_job()
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"`{path}` cannot be written: {error.strerror}", hint="name a file in a folder that exists and is yours") from None
    style.err().print(f"written: {path}\n\nedit it, then\n  oppa space {path}\n  oppa tune {path}")
