"""Store the inputs of a record's figures other than code: arguments, tasks and files.

Their digest shows whether a record still matches.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from oppa.errors import InputError
from oppa.units import with_noun

NAME = "inputs.json"
ABSENT = "absent"
"""Replaces the hash of a file that does not exist."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Holds the inputs of a benchmark's figures."""

    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments by name, as JSON values."""
    tasks: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """SHA-256 of each file by name, or ABSENT."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all inputs; it does not depend on the order of arguments and files."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def line(self) -> str:
        """Return the line that the head of a record shows."""
        parts = (len(self.arguments), "argument"), (len(self.tasks), "task"), (len(self.files), "file")
        return f"SHA-256 `{self.digest}` of " + ", ".join(with_noun(count, name) for count, name in parts)

    @property
    def absent(self) -> list[str]:
        """Return the names of the files that did not exist."""
        return [name for name, content in self.files.items() if content == ABSENT]

    def differences(self, other: Self) -> list[str]:
        """Name each argument, task and file that is not the same in both."""
        arguments = [
            f"{name} = {json.dumps(self.arguments.get(name))}, not {json.dumps(other.arguments.get(name))}"
            for name in _names(self.arguments, other.arguments)
            if self.arguments.get(name) != other.arguments.get(name)
        ]
        tasks = [f"task {name}" for name in _names(self.tasks, other.tasks) if (name in self.tasks) != (name in other.tasks)]
        files = [name for name in _names(self.files, other.files) if self.files.get(name) != other.files.get(name)]
        return [*arguments, *tasks, *files]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"arguments": dict(self.arguments), "tasks": list(self.tasks), "files": dict(sorted(self.files.items()))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Invert `to_dict`; raises KeyError if a key is missing."""
        return cls(arguments=values["arguments"], tasks=tuple(values["tasks"]), files=values["files"])

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the inputs of the record in a folder; None if it has none. Raises InputError for a damaged file."""
        path = folder / NAME
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"`{path}` is damaged: {error}", hint="remove it, and run the benchmark again") from None

    @property
    def text(self) -> str:
        """Return the content of `inputs.json`."""
        return json.dumps({"digest": self.digest, **self.to_dict()}, indent=1) + "\n"


def _names(*several: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for each in several for name in each))
