"""`oppa schema [NAME]`: print the JSON schema of job files, or of what a command prints under `--json`."""

from typing import Annotated

import typer

NAME = "`job` for job files; or a command, such as `tune` or `cluster-status`, for what it prints under --json."


def schema(name: Annotated[str, typer.Argument(metavar="NAME", help=NAME, show_default=False)] = "") -> None:
    """Print a JSON schema; without a name, list the names.

    Editors complete and check job files with `oppa schema job > job.schema.json`.

    Exit codes: 0 printed, 2 unknown name.
    """
    from oppa.cli.outputs import schemas
    from oppa.cli.views import style
    from oppa.errors import InputError, nearest

    known = schemas.names()
    if not name:
        typer.echo("\n".join(known))
        return
    if name not in known:
        raise InputError(f"there is no schema `{name}`", hint=nearest(name, known))
    style.print_json(schemas.schema(name))
