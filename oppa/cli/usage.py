"""Describe what typer refuses on a command line as all other errors are: what is wrong, and what to do."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import typer

from oppa.errors import InputError

SUGGESTION = ". Did you mean "
"""Begins the part of typer's messages that names the nearest commands."""


def refuse_empty(words: Sequence[str]) -> None:
    """Check the words after `oppa` for empty ones, which would name the present folder; words after `--` are the user's own launch line.

    Raises:
        InputError: an argument or the value of an option is empty.
    """
    own = words[: words.index("--")] if "--" in words else words
    for before, word in zip(["", *own], own, strict=False):
        option, equals, value = word.partition("=")
        if not word or (option.startswith("-") and equals and not value):
            option = option or (before if before.startswith("-") else "")
            of = f"the value of `{option}`" if option else "an argument"
            raise InputError(f"{of} is empty: `{word}`", hint="name a value; a variable of your shell may be unset")


def usage_error(refused: typer.TyperException) -> InputError:
    """Return the error for a command line that typer refuses; its hint names the help of the command."""
    context: Any = getattr(refused, "ctx", None)
    command = context.command_path if context else "oppa"
    message, _, nearest = _quoted(refused.message if hasattr(refused, "option_name") else refused.format_message()).partition(SUGGESTION)
    meant = f"did you mean {nearest.rstrip('?')}?" if nearest else ""
    if (option := getattr(refused, "option_name", "")) and hasattr(refused, "possibilities"):
        message = f"`{command}` has no option `{option}`"
        meant = _meant(option, sorted(refused.possibilities or ()), context)
    elif (wrong := _wrong_value(refused, context)) is not None:
        message, meant = wrong
    shown = f"`{command} --help` lists arguments and options" if context else "`--help` after the command lists its options"
    between = "" if not meant else " " if meant.endswith("?") else "; "
    return InputError(message.rstrip(".") + _source(refused, context), hint=f"{meant}{between}{shown}")


_WRONG = {
    r"valid integer": ("is not a whole number", "write digits"),
    r"valid number": ("is not a number", "write a number, such as 1.5"),
    r"greater than or equal to (\S+)": ("is too small", "use at least {}"),
    r"greater than (\S+)": ("is too small", "use more than {}"),
    r"less than or equal to (\S+)": ("is too large", "use at most {}"),
}
"""Words of typer about a wrong value, what is wrong with it, and what to do."""


def _wrong_value(refused: typer.TyperException, context: Any) -> tuple[str, str] | None:
    """Return the message and the hint for an option whose value is no number, or is beyond its bounds; None for other errors."""
    parameter: Any = getattr(refused, "param", None)
    found = ((re.search(words, refused.message), *said) for words, said in _WRONG.items())
    match = next(((match, wrong, hint) for match, wrong, hint in found if match), None)
    if match is None or parameter is None or not context or context.get_parameter_source(parameter.name) is None:
        return None
    bound, wrong, hint = match
    option = max(parameter.opts, key=len)
    value = _value(option) if option.startswith("-") else "..."
    return f"`{option} {value}` {wrong}" if value != "..." else f"`{option}` {wrong}", hint.format(*bound.groups())


def _quoted(text: str) -> str:
    """Return a message of typer with backticks, and without a capital letter."""
    text = re.sub(r"'([^']*)'", r"`\1`", text)
    return text[:1].lower() + text[1:]


def _source(refused: typer.TyperException, context: Any) -> str:
    """Return the environment variable that has the refused value, in parentheses; empty if the value was typed."""
    parameter: Any = getattr(refused, "param", None)
    source = context.get_parameter_source(parameter.name) if context and parameter else None
    given = source is not None and source.name == "ENVIRONMENT"
    return f" (`{parameter.envvar}={os.environ[parameter.envvar]}` in the environment)" if given else ""


def _meant(option: str, possible: Sequence[str], context: Any) -> str:
    """Return what an option that does not exist may stand for: a key of the job file, or another option."""
    from oppa.problem.declaration import tables_with
    from oppa.problem.job_file import JobFile

    key = option.lstrip("-").replace("-", "_")
    takes_job = context is not None and {"job", "changes"} <= {each.name for each in context.command.params}
    tables = tables_with(JobFile, key) if takes_job else []
    if tables:  # [proxy] repeats keys of earlier tables
        return f"use `--set {shlex.quote(f'{tables[0]}.{key}={_value(option)}')}`"
    return f"did you mean {' or '.join(f'`{each}`' for each in possible)}?" if possible else ""


def _value(option: str) -> str:
    """Return the value that was typed after an option; dots if there is none."""
    words = sys.argv[1:]
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return (value if equals else "" if after.startswith("--") else after) or "..."
    return "..."
