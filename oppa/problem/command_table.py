"""Define `[command]` of `job.toml`, the user's own launch line, and convert it to its record."""

import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError, JobError, nearest
from oppa.problem.command import Argument, ConfigFile, LaunchCommand, StepFormat
from oppa.problem.declaration import DeclaredTable, JobCount, Name, parse, shown
from oppa.problem.settings_text import read_settings
from oppa.problem.writes_file import UserKind


class ConfigFileTable(DeclaredTable):
    """Validates `[command.files.NAME]`."""

    path: Name
    """The file: YAML or TOML by its suffix, else JSON."""
    keys: dict[str, str | bool | int | float | dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """Dotted keys to rewrite: a template, a number, a truth value, or one of these for each value of one parameter."""


class StepsTable(DeclaredTable):
    """Validates `[command.steps]`: the name of a known program's output format, or a pattern."""

    format: str | None = None
    """Name of a known program's output."""
    pattern: str | None = None
    """Regular expression of a line that reports a step, with named groups."""
    out_of_memory: str | None = None
    """Regular expression of a line that reports a failed allocation. A program that fails with one counts as out of memory."""
    batches_per_step: JobCount | str | None = None
    """Batches of an optimizer step, for a program that counts batches. Lightning counts `{num_microbatches}`."""

    def record(self, named: Collection[str] = ()) -> StepFormat:
        """Return the description of how steps are reported.

        Args:
            named: Placeholders of the command.

        Raises:
            JobError: not exactly one of `format` and `pattern` is given, the format is unknown, or the batches per step are missing.
        """
        if bool(self.format) == bool(self.pattern):
            raise JobError(
                "`[command.steps]` needs either `format` or `pattern`", hint=f"use one of the known formats: {', '.join(formats())}"
            )
        if self.format and self.format not in formats():
            raise JobError(f"`[command.steps]`: `format = {shown(self.format)}` is unknown", hint=nearest(self.format, formats()))
        known = formats().get(self.format or "", {})
        given: dict[str, Any] = {"out_of_memory": self.out_of_memory} if self.out_of_memory else {}
        batches = str(self.batches_per_step or "1")
        if known.get("counts") == "batches" and self.batches_per_step is None:
            batches = self._accumulation(named)
        return StepFormat(pattern=self.pattern or known["pattern"], format=self.format or "", batches_per_step=batches, **given)

    def _accumulation(self, named: Collection[str]) -> str:
        """Return the template for the batches per step of a program that gets its gradient accumulation as a placeholder.

        Raises:
            JobError: the command does not have that placeholder.
        """
        if "num_microbatches" in named:
            return "{num_microbatches}"
        raise JobError(
            f'`format = "{self.format}"` counts batches, but the number of batches per optimizer step is missing',
            hint="pass `{num_microbatches}` to the program, or add `batches_per_step = ...` to [command.steps];"
            " `batches_per_step = 1` if it does not accumulate",
        )


class CommandTable(DeclaredTable):
    """Validates `[command]`: the user's own launch line."""

    argv: list[str] = Field(default_factory=list)
    """Arguments of the launch line. A launch line after `--` replaces them, and one of the two is required."""
    arguments: dict[str, list[str] | dict[str, list[str]]] = Field(default_factory=dict)
    """Arguments that a parameter adds to the launch line: `NAME = [...]`, or other arguments for each value."""
    files: dict[str, ConfigFileTable] = Field(default_factory=dict)
    """Configuration files of which each trial gets a rewritten copy."""
    steps: StepsTable | None = None
    """How to read steps from the program's output. Without it, oppa tries all known formats."""
    harmless: bool | None = None
    """Trials write into their own folders and report to no tracker."""
    framework: Name | None = None
    """Framework whose options harmless trials change."""
    paths: dict[str, UserKind] = Field(default_factory=dict)
    """Effect of an option or a key that names a path: `"redirect"`, `"cache"`, `"disable"` or `"read"`. Requires harmless trials."""

    @property
    def is_harmless(self) -> bool:
        """Return whether trials write into their own folders; a named framework implies it.

        Raises:
            JobError: paths are declared, and trials start the launch line as it stands.
        """
        found = self.framework is not None if self.harmless is None else self.harmless
        if self.paths and not found:
            raise JobError("`[command.paths]` has no effect", hint="add `harmless = true` to [command]")
        return found

    def record(self, argv: Sequence[str], folder: Path) -> LaunchCommand:
        """Return the command.

        Args:
            argv: Launch line that replaces the table's own, if not empty.
            folder: Folder of the job file, to which configuration files are relative.

        Raises:
            JobError: something in the table is wrong.
            EnvironmentLackingError: the package that rewrites a configuration file is not installed.
        """
        if not (argv or self.argv):
            raise JobError("`[command]` has no command to start", hint="add `argv = [...]`, or give the command after `--`")
        command = LaunchCommand(
            argv=tuple(argv or self.argv),
            arguments=tuple(_argument(parameter, words) for parameter, words in self.arguments.items()),
            files=tuple(_config_file(name, file, folder) for name, file in self.files.items()),
        )
        command.check()
        if self.steps:
            command = dataclasses.replace(command, steps=self.steps.record(command.placeholders))
            command.check()
        return command


def _argument(parameter: str, words: list[str] | dict[str, list[str]]) -> Argument:
    if isinstance(words, list):
        return Argument(parameter=parameter, words=tuple(words))
    return Argument(parameter=parameter, by_value={value: tuple(entry) for value, entry in words.items()})


_WRITERS = {".json": None, ".yaml": None, ".yml": None, ".toml": "tomlkit"}
"""Suffixes of configuration files, and the extra package that rewrites them (runners/command/rewriting.py)."""
_PART = re.compile(r"\{([a-z_]+)\}")
"""The name of a part in the pattern of a format."""


def _config_file(name: str, table: ConfigFileTable, folder: Path) -> ConfigFile:
    path = Path(os.path.realpath(folder / table.path))
    if not path.is_file():
        raise JobError(f'`[command.files.{name}]`: `path = "{table.path}"` is not a file', hint="write the path relative to the job file")
    if path.suffix not in _WRITERS:
        read_settings(path, hint=f"name a file of JSON, or one that ends with {', '.join(_WRITERS)}", error=JobError)
    if (package := _WRITERS.get(path.suffix)) and importlib.util.find_spec(package) is None:
        message = f"rewriting `{table.path}` needs the package `{package}`, which is not installed"
        raise EnvironmentLackingError(message, hint=catalog.install_hint("command"))
    if strange := [key for key, to in table.keys.items() if isinstance(to, dict) and len(to) != 1]:
        raise JobError(
            f"`[command.files.{name}]`: `{strange[0]}` must depend on one parameter", hint="write { zero_stage = { 2 = false, 3 = true } }"
        )
    return ConfigFile(name=name, path=str(path), keys=table.keys)


@functools.cache
def formats() -> dict[str, dict[str, str]]:
    """Return the output formats of known programs, by name: a `pattern`, and what it `counts` if not steps.

    The runner reads the same file without oppa (runners/command/recognition.py).
    """
    file = catalog.root() / "runners" / "command" / "formats.toml"
    declared = parse(file.read_text(), source=file.name, error=InputError)
    parts = declared.pop("parts")
    return {name: {**each, "pattern": _PART.sub(lambda part: parts[part[1]], each["pattern"])} for name, each in declared.items()}
