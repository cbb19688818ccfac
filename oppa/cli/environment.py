"""Read options from environment variables: `OPPA_<COMMAND>_<OPTION>`, such as OPPA_TUNE_STUDY and OPPA_CLUSTER_RUN_CHECK_S.

oppa reserves the variables below for its own processes. No option's variable reaches a trial (`oppa.trials.environments.inherited`).
"""

from collections.abc import Sequence
from typing import Any

import typer.core

RESERVED = frozenset(["OPPA_STUDY", "OPPA_TUNER", "OPPA_TRIAL", "OPPA_LAUNCHER", "OPPA_RENDEZVOUS", "OPPA_SLOT", "OPPA_CONTROL_TOKEN"])
"""Variables that are no options: the tags of processes, and the token of a control service."""


class CommandGroup(typer.core.TyperGroup):
    """A group of commands whose options may be set by variables."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with the names of its options' variables; None if there is no such command."""
        command = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            if isinstance(parameter, typer.core.TyperOption):
                name = variable([*_path(ctx), cmd_name], max(parameter.opts, key=len))
                parameter.envvar = None if name in RESERVED else name
                parameter.show_envvar = False
        return command


class CommandAfterDashes(typer.core.TyperCommand):
    """A command whose last argument is a launch line after `--`; an optional argument before it may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`, and take those after it as the launch line."""
        at = args.index("--") if "--" in args else len(args)
        rest: list[str] = super().parse_args(ctx, args[:at])
        if words := args[at + 1 :]:
            ctx.params["command"] = words
        return rest


def variable(path: Sequence[str], option: str) -> str:
    """Return the variable of a command's option.

    Args:
        path: Names of the command's groups below `oppa`, and its own.
        option: The option as it is typed, such as `--dry-run`.
    """
    return "_".join(["OPPA", *path, option.lstrip("-")]).replace("-", "_").upper()


def _path(context: Any) -> list[str]:
    """Return the names of the groups below `oppa` that lead to a context."""
    return [] if context.parent is None else [*_path(context.parent), str(context.info_name)]
