"""Read the input of a command: a job file, and the user's own launch line after `--`."""

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from oppa.errors import InputError

COMMAND = "Your own launch line, such as `torchrun train.py --micro-batch {micro_batch}`."
SET = "Change a key of the job file: `limits.trials=20`, `launcher.options.partition=gpu`. Repeat it for more."
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET, show_default=False)]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help=COMMAND, show_default=False)]


def refuse_command(command: Sequence[str] | None, because: str) -> None:
    """Raise InputError if a launch line is given to a command that cannot use it."""
    if command:
        raise InputError(f"the command `{shlex.join(command)}` cannot be used: {because}", hint="remove it")
