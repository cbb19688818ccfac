"""Define what a tracker does: it records runs, each with parameters, values by step, files and an ending."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from oppa.redaction import HIDDEN, is_secret, redacted

Value = str | int | float | bool
Status = Literal["finished", "failed", "interrupted"]
"""End of a run; a later session continues a run that was interrupted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Describes a run as a tracker records it: a study, one of its trials, or a training run."""

    id: str
    """Unique id; a run that a later session continues has the same one. It consists of letters, digits and `-`."""
    name: str
    parent: str | None = None
    """Id of the run under which this one is nested: the study of a trial."""
    parameters: Mapping[str, Value] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Hide the secrets among the parameters."""
        object.__setattr__(self, "parameters", without_secrets(self.parameters))


def without_secrets(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values in which secrets are hidden, as studies hide them."""
    return {name: _public(name, value) for name, value in values.items()}


def _public(name: str, value: Value) -> Value:
    if not isinstance(value, str):
        return value
    return HIDDEN if is_secret(name, value) else redacted([value])[0]


class Tracker(Protocol):
    """Records runs. A class is called as `Class(experiment, folder, **options)`, in a process of its own; any method may raise."""

    def open(self, run: TrackedRun) -> None:
        """Begin a run, or continue the one with the same id."""

    def log(self, run: TrackedRun, values: Mapping[str, Value], step: int) -> None:
        """Record values at a step: numbers are metrics, texts are notes such as the outcome of a trial."""

    def artifact(self, run: TrackedRun, file: Path) -> None:
        """Record a copy of a file."""

    def finish(self, run: TrackedRun, status: Status) -> None:
        """End a run; all that was recorded is stored when this returns."""
