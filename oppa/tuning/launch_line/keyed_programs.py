"""Declare programs whose settings are keys of a launch line or of a file, from `keyed_programs.toml`."""

import dataclasses
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.problem.launch_line.line import LaunchLine

_FIRST_ARGUMENTS = 2
"""Arguments by which a program with subcommands is recognised."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyedProgram:
    """Describes the keys of a program; `keyed_programs.toml` explains each field."""

    title: str
    program: str
    keys: Mapping[str, str]
    marks: Sequence[str] = ()
    form: str = ""
    truth: Sequence[str] = ("false", "true")
    file: str = ""
    usual: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reduces: bool = False
    fixed: Sequence[str] = ()
    holds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pipeline: Sequence[str] = ()
    with_tp: str = ""
    choices: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    instead: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]] = dataclasses.field(default_factory=dict)
    settled: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    model: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
    model_texts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    model_values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    experts: Sequence[Mapping[str, Any]] = ()
    config: str = ""
    seq_len: str = ""
    precision: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adapter: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    quantized: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    optimizer: str = ""
    lighter: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sharding: bool = False
    """True if the keys of FSDP and DeepSpeed are those of Transformers."""
    devices: str = ""
    hosts: str = ""
    trial: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    off: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flags: Sequence[str] = ()
    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_bare(self) -> bool:
        """Return whether keys have no dashes in a launch line."""
        return not self.form.startswith("-")

    def has_settled(self, name: str, line: LaunchLine, devices: int) -> bool:
        """Return whether a settled parameter applies to the program that a line names, on this number of devices."""
        pattern = self.settled[name].get("program")
        return pattern is None or (devices > 1 and _is_named(pattern, line))

    def trains_adapters(self, line: LaunchLine) -> bool:
        """Return whether the program that a line names trains adapters alone."""
        return "program" in self.adapter and _is_named(self.adapter["program"], line)

    def words(self, key: str, value: Any) -> list[str]:
        """Return the words that state a key in a launch line."""
        text = self.truth[value] if isinstance(value, bool) else str(value)
        return [word.format(key=key, value=text) for word in self.form.split()]


@functools.cache
def keyed_programs() -> dict[str, KeyedProgram]:
    """Return the programs by name."""
    tables = tomllib.loads(Path(__file__).with_name("keyed_programs.toml").read_text())
    return {name: KeyedProgram(**table) for name, table in tables.items()}


def named_programs(line: LaunchLine) -> dict[str, KeyedProgram]:
    """Return the programs that have the name of a line's program, which their marks may tell apart."""
    return {name: each for name, each in keyed_programs().items() if _is_named(each.program, line)}


def _is_named(pattern: str, line: LaunchLine) -> bool:
    """Return whether a line's program, with its first arguments, has a name of this pattern."""
    text = " ".join([line.program.text, *(word.text for word in line.arguments[:_FIRST_ARGUMENTS])])
    return re.match(rf"(.*/)?({pattern})(?=\s|$)", text) is not None
