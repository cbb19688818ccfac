"""Exchange requests to train on another number of hosts, through two files of a run's folder.

resize.json     another process requests a number of hosts, in place of an earlier request
resized.json    the process that trains states the number of its hosts after each change, and the last request that it refused

A process that cannot change the number of its hosts while it trains saves the run and stops, as for `stop`. The next process then begins
on as many hosts as requested.
"""

import dataclasses
import operator
import os
import time
from pathlib import Path
from typing import Any, Self

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.regular_file import read_json
from oppa.trials.trial_folder import write_json

RESIZE, RESIZED = "resize.json", "resized.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, InputError)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """Requests a number of hosts."""

    hosts: int
    configuration: Configuration
    """Configuration on these hosts."""
    id: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())
    at: float = dataclasses.field(default_factory=time.time)
    """Unix time of the request."""

    def write(self, run: Path) -> None:
        """Write the request into a run's folder; raises OSError."""
        facts = {"id": self.id, "at": self.at, "hosts": self.hosts}
        write_json(run / RESIZE, {**facts, "configuration": self.configuration.to_dict()})

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Return the last request; None if there is none, or its file is damaged."""
        try:
            values = read_json(run / RESIZE)
            configuration = Configuration.checked(values["configuration"])
            return cls(id=str(values["id"]), at=float(values["at"]), hosts=operator.index(values["hosts"]), configuration=configuration)
        except _UNREADABLE:
            return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PresentSize:
    """States on how many hosts a process trains."""

    process: str
    """Number and start of the process."""
    hosts: int
    at: float
    """Unix time at which it began on these hosts."""
    size: int
    """Size of the ledger at that time, in bytes."""
    refused: str = ""
    """Id of the last request that was refused."""
    cause: str = ""
    """Why it was refused."""
    excused: bool = False
    """True if hosts were withdrawn, which is no evidence about the number of hosts."""

    def write(self, run: Path) -> None:
        """Write the statement into a run's folder; raises OSError."""
        write_json(run / RESIZED, dataclasses.asdict(self))

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Return the last statement; None if there is none, or its file is damaged."""
        try:
            values: dict[str, Any] = read_json(run / RESIZED)
            found = cls(**values)
            return found if found.hosts >= 1 and 0 <= found.size < 1 << 62 and found.at == found.at else None
        except _UNREADABLE:
            return None


def clear(run: Path) -> None:
    """Remove both files, which are of an earlier process."""
    for name in (RESIZE, RESIZED):
        (run / name).unlink(missing_ok=True)
