"""Read options from environment variables: `OPPA_<COMMAND>_<OPTION>`, such as OPPA_TUNE_STUDY and OPPA_CLUSTER_RUN_CHECK_S.

oppa reserves the variables below for its own processes. No option's variable reaches a trial (`oppa.trials.environments.inherited`).
Paths that the file system refuses are refused here, for all commands.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer.core

from oppa.errors import InputError

RESERVED = frozenset(["OPPA_STUDY", "OPPA_TUNER", "OPPA_TRIAL", "OPPA_LAUNCHER", "OPPA_RENDEZVOUS", "OPPA_SLOT", "OPPA_CONTROL_TOKEN"])
"""Variables that are no options: the tags of processes, and the token of a control service."""


class CommandGroup(typer.core.TyperGroup):
    """A group of commands whose options may be set by variables."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with the names of its options' variables; None if there is no such command."""
        command = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            parameter.callback = parameter.callback or _reachable
            if isinstance(parameter, typer.core.TyperOption):
                name = variable([*_path(ctx), cmd_name], max(parameter.opts, key=len))
                parameter.envvar = None if name in RESERVED else name
                parameter.show_envvar = False
        return command


def variable(path: Sequence[str], option: str) -> str:
    """Return the variable of a command's option.

    Args:
        path: Names of the command's groups below `oppa`, and its own.
        option: The option as it is typed, such as `--dry-run`.
    """
    return "_".join(["OPPA", *path, option.lstrip("-")]).replace("-", "_").upper()


def _reachable(_context: Any, _parameter: Any, value: Any) -> Any:
    """Return the value of a parameter; raises InputError for a path whose name is too long, or in a folder that may not be searched."""
    for path in value if isinstance(value, list) else [value]:
        if isinstance(path, Path):
            try:
                os.stat(f"{path}/.")  # noqa: PTH116 (the dot searches a folder; Path drops it)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise InputError(f"`{path}` cannot be used: {error.strerror}", hint="name a path that you may use") from None
    return value


def _path(context: Any) -> list[str]:
    """Return the names of the groups below `oppa` that lead to a context."""
    return [] if context.parent is None else [*_path(context.parent), str(context.info_name)]
