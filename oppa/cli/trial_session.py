"""Explain how to continue a session after an interruption; `oppa tune`, `oppa profile` and `oppa train` share this code."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from oppa.errors import EnvironmentLackingError


@contextlib.contextmanager
def resumable(again: list[str]) -> Iterator[None]:
    """Print how to continue if the work is interrupted or the environment is lacking, and re-raise the error."""
    try:
        yield
    except (KeyboardInterrupt, EnvironmentLackingError):
        print_resume(again)
        raise


def print_resume(again: list[str]) -> None:
    """Print the command line that continues the work, to stderr."""
    from oppa.cli.views import style
    from oppa.problem.allocation import read_netlab

    line = shlex.join([*read_netlab().get("command", []), "oppa", *again])
    style.err().print(f"\ninterrupted; nothing is lost. Continue with\n\n  {line}\n", markup=False)


def again_with(option: str, folder: Path) -> list[str]:
    """Return the words after `oppa` that continue in this folder, which `option` names."""
    own, dashes, command = _cut(sys.argv[1:])
    named = any(word == option or word.startswith(f"{option}=") for word in own)
    return [*own, *([] if named else [option, str(folder)]), *dashes, *command]


def _cut(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words before `--`, the `--` itself if there is one, and the words after it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at : at + 1], words[at + 1 :]
