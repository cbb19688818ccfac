"""Find the commands of oppa that a text shows, and what the command line lacks of them."""

import functools
import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from oppa.cli import app
from oppa.cli.job_options import LaunchLineCommand
from tests.command_line import commands_below

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(oppa [^`]+)`")
SHOWN = re.compile(r"(?:^|&& |\$ |\.\.\. |-- )oppa (?P<words>.*)")
COMMENT = re.compile(r"(?:^|\s)#.*")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
SPLIT = re.compile(r"\{[^{}\s]*,[^{}\s]*\}")
HELP = {"-h", "--help", "--version", "--install-completion"}


def split_by_a_shell(text: str) -> list[str]:
    """Return the braces with commas that a shell such as bash expands to several words, because they are not quoted."""
    return [braces for line in _shell_lines(text) for braces in SPLIT.findall(COMMENT.sub("", QUOTED.sub("", line)))]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command, without the user's own launch line and comments."""
    for line in [*_shell_lines(text), *INLINE.findall(FENCE.sub("", text))]:
        for part in COMMENT.sub("", line).split(" -- "):
            if found := SHOWN.search(part):
                yield shlex.split(found["words"].removesuffix("\\"))


def unknown(words: list[str]) -> list[str]:
    """Return the command or the options that the command line does not have."""
    command = _root()
    rest = list(words)
    while (below := commands_below(command)) and rest and not rest[0].startswith("-"):
        if rest[0] not in below:
            return [] if not rest[0].islower() or "|" in rest[0] else [rest[0]]
        command = below[rest.pop(0)]
    known = HELP | {option for parameter in command.params for option in parameter.opts}
    known |= {each for parameter in command.params for each in parameter.secondary_opts}
    known |= {"--"} if isinstance(command, LaunchLineCommand) else set()
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


@functools.cache
def _root() -> Any:
    return typer.main.get_command(app)


def _shell_lines(text: str) -> list[str]:
    return [line for block in FENCE.finditer(text) if block["language"] in {"sh", "console"} for line in block["code"].splitlines()]
