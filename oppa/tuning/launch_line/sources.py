"""Gather what a framework's module needs to understand a launch line: the line, this machine, the user's settings, readable files."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.errors import InputError
from oppa.problem.detect import Machine
from oppa.problem.devices import CPU
from oppa.problem.launch_line.line import LaunchLine
from oppa.problem.launch_line.words import Word
from oppa.problem.settings_text import read_settings
from oppa.regular_file import is_file
from oppa.tuning.launch_line.meaning import LineDevices
from oppa.tuning.launch_line.program_source import source_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSources:
    """Provides the sources of a launch line's meaning."""

    line: LaunchLine
    machine: Machine
    devices: LineDevices
    environment: Mapping[str, str]
    device: str = ""
    """Kind of device that the user states; empty if that is left to the line and this machine."""

    @property
    def on_cpus(self) -> bool:
        """Return whether ranks have no GPU: nobody states one, and this machine has none."""
        return not self.machine.gpus and self.device.upper() in ("", CPU)

    @functools.cached_property
    def script(self) -> str:
        """Return the text of the program, with that of modules that it only calls; empty if it cannot be read."""
        return source_of(self.line)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return what the program and its arguments need and nothing states, such as `$DATA`."""
        return tuple(dict.fromkeys(name for word in self.line.program_words for name in word.missing))

    def imports(self, pattern: str) -> bool:
        """Return whether the program imports a module or a name of a module that matches."""
        return re.search(rf"^[ \t]*(?:from|import)\s[^\n]*(?:{pattern})", self.script, re.MULTILINE) is not None

    def contents(self, word: Word | str) -> dict[str, Any]:
        """Return the tables of a JSON, YAML or TOML file that the line names.

        Raises:
            InputError: the file cannot be read, or holds no table.
        """
        text = word if isinstance(word, str) else word.text
        if not isinstance(word, str) and word.missing:
            message = f"the file `{text}` ({word.origin}) is not known, because nothing states `{word.missing[0]}`"
            raise InputError(message, hint="write the file's name in the line")
        path = self.line.path(text)
        hint = "name the file that the program reads, and run oppa where the program would be started"
        values = read_settings(path, hint=hint)
        if not isinstance(values, dict):
            raise InputError(f"`{path}` holds no table", hint=hint)
        return values

    def local_file(self, text: str) -> Path | None:
        """Return the path of a file that exists; None for any other name."""
        path = self.line.path(text) if text else None
        return path if path is not None and is_file(path) else None

    def settings_file(self, text: str) -> Path | None:
        """Return the path of a file of JSON or YAML that exists; None for any other name."""
        return self.local_file(text) if text.endswith((".json", ".yaml", ".yml")) else None
