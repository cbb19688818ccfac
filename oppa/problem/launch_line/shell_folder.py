"""Follow the folder of a shell through `cd`, `pushd` and `popd`."""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from oppa.errors import InputError
from oppa.problem.launch_line.shell_values import Variables
from oppa.problem.launch_line.words import Word, word

_STAYS = ("$SLURM_SUBMIT_DIR", "${SLURM_SUBMIT_DIR}", "$PBS_O_WORKDIR", "${PBS_O_WORKDIR}")
"""Variables that name the folder in which the user started the script."""


class FolderOfShell:
    """Holds the folder that a script has changed to, and those that `pushd` has kept."""

    def __init__(self, start: Path) -> None:
        self._start = start
        self._folder: Path | None = None
        self._before: Path | None = None
        self._kept: tuple[Path | None, ...] = ()
        self._why = ""

    def copy(self) -> Self:
        """Return a folder that changes apart from this one."""
        return copy.copy(self)

    @property
    def path(self) -> Path:
        """Return the folder, from the folder of oppa."""
        return self._start / (self._folder or Path())

    def folder_of(self, command: str) -> Path | None:
        """Return the folder that the script has changed to, None if it stays; raises InputError if it is unknown."""
        if self._why:
            hint = "start oppa in the folder of the program, and give the launch line that the script starts"
            raise InputError(f"the folder of `{command}` is not known, because of `{self._why}`", hint=hint)
        return self._folder

    def forget(self, why: str = "cd") -> None:
        """Mark the folder as unknown."""
        self._why = why

    def change(self, words: Sequence[Word], variables: Variables) -> None:
        """Follow `cd`, `pushd` or `popd` with their words."""
        name = words[0].text
        given = [each for each in words[1:] if each.text not in ("-P", "-L", "-e", "--")]
        shown = " ".join(each.text for each in words)
        before = self._folder
        if name == "popd" and not given and self._kept:
            *kept, self._folder = self._kept
            self._kept = tuple(kept)
        elif name == "popd" or len(given) != 1 or (given[0].missing and given[0].text not in _STAYS):
            self.forget(shown)
        elif name == "cd" and given[0].text == "-":
            self._folder = self._before
        elif name == "pushd" and given[0].text[:1] in ("+", "-"):
            self.forget(shown)
        else:
            self._kept = (*self._kept, before) if name == "pushd" else self._kept
            self._folder = None if given[0].missing else (before or Path()) / given[0].text
            self._why = "" if given[0].missing or Path(given[0].text).is_absolute() else self._why
        self._before = before
        variables.put("PWD", word(os.path.normpath(Path.cwd() / self.path), variables.source))
