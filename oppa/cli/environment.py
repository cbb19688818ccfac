"""Read options from environment variables: `OPPA_<COMMAND>_<OPTION>`, such as OPPA_TUNE_STUDY and OPPA_CLUSTER_RUN_CHECK_S.

oppa reserves the variables below for its own processes. No option's variable reaches a trial (`oppa.trials.environments.inherited`).
Paths that the file system refuses are refused here, for all commands.
"""

import inspect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer.core

from oppa.cli import renamed
from oppa.errors import InputError, nearest

RESERVED = frozenset(["OPPA_STUDY", "OPPA_TUNER", "OPPA_TRIAL", "OPPA_LAUNCHER", "OPPA_RENDEZVOUS", "OPPA_SLOT", "OPPA_CONTROL_TOKEN"])
"""Variables that are no options: the tags of processes, and the token of a control service."""
_VALUES = {bool: "", int: "N", float: "NUMBER"}
"""Names of values in the help, by their type."""
_ROWS = re.compile(r"^(`[^`]+`: |\s|\S+ {2,})", re.MULTILINE)
"""The beginning of a list's or a table's row."""


class CommandGroup(typer.core.TyperGroup):
    """Groups commands whose options may be set by variables, and refuses variables that set no option."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with the names of its options' variables; None if there is no such command."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            command.help = _unwrapped(command.help)
        for parameter in command.params if command is not None else ():
            parameter.callback = parameter.callback or _reachable
            if isinstance(parameter, typer.core.TyperOption):
                name = variable([*_path(ctx), cmd_name], max(parameter.opts, key=len))
                parameter.envvar = None if name in RESERVED else name
                parameter.show_envvar = False
                _name_value(parameter)
        if command is not None and (shown := command.get_help_option(ctx)) is not None:
            _name_value(shown)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that runs, with its name and the words after it; raises InputError for a variable without an option."""
        name, command, rest = super().resolve_command(ctx, args)
        if name and not isinstance(command, typer.core.TyperGroup):
            others = [variable([*_path(ctx), each], "") for each in self.list_commands(ctx) if each != name]
            _require_known([*_path(ctx), name], command, others)
        return name, command, rest


def _name_value(option: typer.core.TyperOption) -> None:
    """Give an option's value a name in the help, and none to a flag, which has no value."""
    kind = option.type_descriptor.annotation
    if option.metavar is None and kind in _VALUES:
        option.metavar = _VALUES[kind]


def _unwrapped(text: str) -> str:
    """Return a help text whose paragraphs are one line each, so that they are wrapped at the terminal's width; lists and tables stay."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if _ROWS.search(each) else each.replace("\n", " ") for each in paragraphs)


def _require_known(path: Sequence[str], command: Any, others: Sequence[str]) -> None:
    """Refuse a variable of a command that sets none of its options.

    Args:
        path: Names of the command's groups below `oppa`, and its own.
        others: What the variables of the other commands begin with: those of `train-policy` begin as those of `train` do.
    """
    own = variable(path, "")
    known = {each.envvar for each in command.params if each.envvar}
    for name in sorted(os.environ):
        other = any(name.startswith(prefix) for prefix in others if prefix.startswith(own))
        if name.startswith(own) and os.environ[name] and not other and name not in known | RESERVED:
            option = "--" + name.removeprefix(own).replace("_", "-").lower()
            words = renamed.replaced(" ".join(path), option, os.environ[name])
            hint = f"unset it, and use `{words}`" if words else nearest(name, known)
            raise InputError(f"the environment variable `{name}` sets no option of `oppa {' '.join(path)}`", hint=hint)


def variable(path: Sequence[str], option: str) -> str:
    """Return the variable of a command's option.

    Args:
        path: Names of the command's groups below `oppa`, and its own.
        option: The option as it is typed, such as `--dry-run`; empty for what all variables of the command begin with.
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
