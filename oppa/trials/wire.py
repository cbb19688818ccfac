"""The trial folder: the whole protocol between oppa and a program that trains.

trial.json           written by oppa before the start: what to run (TrialSpec)
measurements.jsonl   appended by rank 0, one line per optimizer step, as it happens (Measurement)
outcome.json         written once, by the first rank that can tell why the trial ended (Report)
stop                 made by oppa: rank 0 looks for it at each step boundary and tells the others
last_step            written by rank 0 of a program that has no other way to tell them: the number of the last step
reporter             of a command on several hosts: made by the host that reports its steps
stdout.log, stderr.log
"""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any, Literal, Self

from oppa.errors import MeasurementError
from oppa.problem.cluster import Cluster
from oppa.problem.command import Command
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.problem.training import Training

SPEC, MEASUREMENTS, REPORT, STOP, LAST_STEP = "trial.json", "measurements.jsonl", "outcome.json", "stop", "last_step"
REPORTER = "reporter"

Outcome = Literal["completed", "terminated_early", "out_of_memory", "failed", "timed_out", "interrupted"]
"""How a trial can end. `terminated_early` is the designer's choice, `interrupted` the user's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial: everything that a program needs to run it. `steps` counts optimizer steps, the first (warm-up) included."""

    study: str
    trial: int
    configuration: Configuration
    model: Model
    cluster: Cluster
    training: Training
    steps: int
    memory_limit_enforced: bool = True
    command: Command | None = None
    """What the runner `command` is to start."""

    @classmethod
    def of(cls, problem: Problem, configuration: Configuration, *, study: str, trial: int, steps: int) -> Self:
        """The trial that runs one of a problem's configurations."""
        return cls(
            study=study,
            trial=trial,
            configuration=configuration,
            model=problem.model,
            cluster=problem.cluster,
            training=problem.training,
            steps=steps,
            command=problem.pinned_command,
        )

    def write(self, folder: Path) -> None:
        """Make the trial folder with its `trial.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SPEC, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The inverse of `write`."""
        values = json.loads((folder / SPEC).read_text())
        return cls(
            **{
                **values,
                "configuration": Configuration(**values["configuration"]),
                "model": Model(**values["model"]),
                "cluster": Cluster.from_dict(values["cluster"]),
                "training": Training(**values["training"]),
                "command": Command.from_dict(values["command"]) if values.get("command") else None,
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One optimizer step. `memory_bytes` is the peak so far, maximum over ranks; None where it is not known yet."""

    step: int
    step_time_s: float
    memory_bytes: int | None = None
    loss: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a program itself says of its end: an outcome, why, and which rank."""

    outcome: str
    cause: str = ""
    rank: int | None = None
    traceback: str = ""
    time: float | None = None
    """When it was written, in Unix seconds."""


class MeasurementReader:
    """Reads a growing `measurements.jsonl`: each call returns the complete lines since the last."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MEASUREMENTS
        self._offset = 0

    def new(self) -> list[Measurement]:
        """Measurements appended since the last call; an unfinished last line waits for the next.

        Raises:
            MeasurementError: if a line is no measurement.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete, newline, _ = data.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return [_measurement(line) for line in complete.splitlines()]


def read_report(folder: Path) -> Report | None:
    """The program's own `outcome.json`, if it wrote one; raises MeasurementError if it is no report."""
    try:
        text = (folder / REPORT).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Report(**_known(Report, json.loads(text)))
    except (ValueError, TypeError) as error:
        raise MeasurementError(f"`{REPORT}` is no report: {error}") from error


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(values, indent=1) + "\n")
    draft.replace(path)


_KINDS: dict[type, dict[str, Any]] = {
    Measurement: {"step": int, "step_time_s": int | float, "memory_bytes": int | None, "loss": int | float | None},
    Report: {"outcome": str, "cause": str, "rank": int | None, "traceback": str, "time": int | float | None},
}


def _measurement(line: bytes) -> Measurement:
    try:
        measurement = Measurement(**_known(Measurement, json.loads(line)))
        valid = math.isfinite(measurement.step_time_s) and measurement.step_time_s > 0
    except (ValueError, TypeError) as error:
        raise MeasurementError(f"`{MEASUREMENTS}` has a line that is no measurement: {error}") from error
    if not valid:
        raise MeasurementError(f"step {measurement.step} took {measurement.step_time_s} s")
    return measurement


def _known(record: type[Measurement] | type[Report], values: Any) -> dict[str, Any]:
    """The values that oppa knows: programs may write more."""
    if not isinstance(values, dict):
        raise TypeError(f"{values!r} is not an object")
    known = {name: values[name] for name in _KINDS[record] if name in values}
    for name, value in known.items():
        if not isinstance(value, _KINDS[record][name]):
            raise TypeError(f"`{name} = {value!r}`")
    return known
