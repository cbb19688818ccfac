"""Read the input of a command: a job file, or the user's own launch line after `--`, or both.

Without a job file, the launch line itself states what may vary (oppa.tuning.launch_line). `--set` reaches everything that a
job file would state. `--model` and others are short for a `--set` that users type often.
"""

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.problem.problem import Problem
    from oppa.tuning.launch_line.line_job import LineJob

JOB = "Job file; `oppa init` writes one. Without it, oppa reads the job from the launch line."
COMMAND = "Your own launch line, such as `torchrun train.py --micro-batch {micro_batch}`."
SET = "Change a key of the job file, such as `limits.trials=20`. Repeat it for more."
MODEL = "Dimensions of the model, such as `layers=32,hidden=4096`, or a `config.json`; sets keys of `\\[model]`. Repeat it for more."
Job = Annotated[Path | None, typer.Argument(metavar="JOB", help=JOB, show_default=False)]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET, show_default=False)]
ModelWords = Annotated[list[str] | None, typer.Option("--model", metavar="DIMENSIONS|FILE", help=MODEL, show_default=False)]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help=COMMAND, show_default=False)]
_SETTING = re.compile(r"[a-z_]+(\.[\w-]+)+=")
_PARAMETER = re.compile(r"\w+=")
_VERBOSE = re.compile(r"-v+|--verbose")


class LaunchLineCommand(typer.core.TyperCommand):
    """Takes the words after `--` as a launch line, also if no job file stands before them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep those after it as the launch line."""
        at = args.index("--") if "--" in args else len(args)
        own, line = args[:at], args[at + 1 :]
        try:
            rest = super().parse_args(ctx, [*own])  # the parser empties it
        except typer.TyperException as refused:
            place = next((place for place, word in enumerate(own) if _is_program(word)), len(own))
            options = {word.partition("=")[0] for word in own[place:]}  # those of the program
            if getattr(refused, "option_name", "") not in options or any(Path(word).exists() for word in own[:place]):
                raise
            raise _stray(own[place + 1 :], own[place], shlex.join([*ctx.command_path.split(), *own[:place]])) from None
        if stray := ctx.params.get("command"):
            raise _stray(stray, str(ctx.params.get("job") or ctx.params["source"]), ctx.command_path, ctx.params.get("setting", ""))
        ctx.params["command"] = line or None
        return rest


def _stray(words: Sequence[str], job: str, command: str, configuration: str = "") -> InputError:
    """Return the error for words in front of `--` that are neither options nor the job file: a setting, or a launch line without `--`.

    Args:
        configuration: The configuration in front of these words, which may be the rest of it.
    """
    if _is_program(job):
        line = shlex.join([job, *filter(None, [configuration]), *words])
        return InputError(f"`{job}` is no job file", hint=f"put `--` in front of a launch line: `{command} -- {line}`")
    if _PARAMETER.match(configuration) and all(map(_PARAMETER.match, words)):
        whole = ",".join((configuration, *words))
        return InputError(
            f"`{words[0]}` is no argument of `{command}`", hint=f"join the parameters of a configuration by commas: `{whole}`"
        )
    meant = f"write `--set {shlex.quote(words[0])}`" if _SETTING.match(words[0]) else "remove it"
    return InputError(f"`{words[0]}` is no argument of `{command}`", hint=f"{meant}; a launch line follows `--`")


def _is_program(word: str) -> bool:
    """Return whether a word is a program on PATH, and neither an option nor a file here."""
    return not word.startswith("-") and not Path(word).exists() and shutil.which(word) is not None


def verbose_first(words: Sequence[str]) -> list[str]:
    """Return the words after `oppa` with -v, -vv and --verbose before the command; words after `--` are the user's own launch line."""
    at = list(words).index("--") if "--" in words else len(words)
    own, rest = words[:at], words[at:]
    verbose = [word for word in own if _VERBOSE.fullmatch(word)]
    return [*verbose, *(word for word in own if word not in verbose), *rest]


def settings_of(changes: Sequence[str] | None, model: Sequence[str] | None, named: Mapping[str, object] | None = None) -> list[str]:
    """Return the words of `--set`, after those that `--model` and other options are short for.

    Args:
        changes: Words of `--set`.
        model: Values of `--model`: dimensions and files, separated by commas.
        named: Values of other such options, by key; None or "" where one is not given.
    """
    stated = ((key, value) for key, value in (named or {}).items() if value not in (None, ""))
    short = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in stated]
    return [*(_model_setting(word) for value in model or () for word in value.split(",")), *short, *(changes or ())]


def _model_setting(word: str) -> str:
    """Return the setting that a word of `--model` stands for: `model.layers=32`, or `model.config=/home/me/config.json`."""
    key, states, _ = word.partition("=")
    return f"model.{word}" if states and "/" not in key else f"model.config={Path(word).absolute()}"


def refuse_command(command: Sequence[str] | None, because: str) -> None:
    """Raise InputError if a launch line is given to a command that cannot use it."""
    if command:
        raise InputError(f"the command `{shlex.join(command)}` cannot be used: {because}", hint="remove it")


def job_of(job: Path | None, command: Sequence[str], changes: Sequence[str], *, study: Path | None = None) -> "Problem | LineJob":
    """Return the problem of a job file, or the job of a launch line without one; that of its study, if it is resumed."""
    from oppa import api

    if job is not None:
        return api.load_job(job, settings=changes, command=command)
    if not command:
        hint = "name a job file, or give your launch line at the end: `-- torchrun train.py ...`"
        raise InputError("there is neither a job file nor a launch line", hint=hint)
    return api.load_line(command, settings=changes, study=study)


def problem_of(job: Path | None, command: Sequence[str], changes: Sequence[str]) -> "Problem":
    """Return the problem of a job file or of a launch line; what is understood of the line is printed on stderr."""
    from oppa.problem.problem import Problem

    found = job_of(job, command, changes)
    if isinstance(found, Problem):
        return found
    from oppa.cli.views.launch_line_view import print_understood

    print_understood(found)
    return found.problem
