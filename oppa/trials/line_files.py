"""Digest the program and the configuration files that a launch line names, so that a later edit is found."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from oppa.problem.command import LaunchCommand
from oppa.problem.settings_text import SUFFIXES
from oppa.problem.stated_words import folder_of
from oppa.problem.templates import names_in, without_escapes
from oppa.regular_file import is_file

_PROGRAMS = (".py", ".sh")
MOST_BYTES = 1 << 24
"""Largest file that is digested; larger ones are data."""


def digests(command: LaunchCommand) -> dict[str, str]:
    """Return the SHA-256 of the programs and configuration files of a launch line, by their paths in the line."""
    folder = folder_of(command.argv)
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _named(command) if _is_small(folder / name)}


def _named(command: LaunchCommand) -> Iterator[str]:
    """Yield paths of the line that a program or a configuration file may have."""
    for before, word in zip(("", *command.argv), command.argv, strict=False):
        path = without_escapes(word.rpartition("=")[2])
        if before in ("-m", "--module"):
            path = f"{path.replace('.', '/')}.py"
        if not any(names_in(word)) and Path(path).suffix in (*_PROGRAMS, *SUFFIXES):
            yield path
    yield from (file.path for file in command.files)


def _is_small(path: Path) -> bool:
    return is_file(path) and path.stat().st_size <= MOST_BYTES
