"""Find the commands of oppa that a text shows, and what the command line lacks of them."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from oppa.cli import app
from oppa.cli.job_options import LaunchLineCommand

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(oppa [^`]+)`")
SHOWN = re.compile(r"(?:^|&& |\$ |\.\.\. |-- )oppa (?P<words>.*)")
HELP = {"-h", "--help", "--version", "--install-completion"}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command, without the user's own launch line and comments."""
    lines = [line for block in FENCE.finditer(text) if block["language"] in {"sh", "console"} for line in block["code"].splitlines()]
    for line in [*lines, *INLINE.findall(FENCE.sub("", text))]:
        for part in re.sub(r"(?:^|\s)#.*", "", line).split(" -- "):
            if found := SHOWN.search(part):
                yield shlex.split(found["words"].removesuffix("\\"))


def unknown(words: list[str]) -> list[str]:
    """Return the command or the options that the command line does not have."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return [] if not rest[0].islower() or "|" in rest[0] else [rest[0]]
        command = command.commands[rest.pop(0)]
    known = HELP | {option for parameter in command.params for option in parameter.opts}
    known |= {"--", "--model"} if isinstance(command, LaunchLineCommand) else set()
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
