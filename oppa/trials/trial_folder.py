"""Define the trial folder, which is the whole protocol between oppa and a program that trains.

The folder holds these files:

    trial.json           what to run (TrialSpec); written by oppa before the start
    measurements.jsonl   one line per optimizer step (Measurement); appended by rank 0 after each step
    outcome.json         why the trial ended (Report); written once, by the first rank that reports it
    stop                 made by oppa; rank 0 checks for it at each step boundary and informs the other ranks
    last_step            number of the last step; written by rank 0 of a program that informs the other ranks in no other way
    opened               made by a program that reports its steps by itself, before its first step
    reporter             made by the host that reports the steps, for a command on several hosts
    attempt.json         what a user's own trainer trains, if oppa supervises it; written by oppa before the start
    paused.json          what the trainer does instead of training, and until when (Unix seconds) that may last; written by rank 0
    recognised           name of the format in which a command prints its steps, if none is declared and one was recognised;
                         then the total of a bar
    stdout.log           output of the trial's processes
    stderr.log           their error output
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from oppa.atomic_write import write_atomically
from oppa.errors import JobError, MeasurementError
from oppa.plain_text import plain_text
from oppa.problem.cluster import Cluster
from oppa.problem.command import LaunchCommand
from oppa.problem.configuration import Configuration
from oppa.problem.framework_variables import lacking
from oppa.problem.model import MODEL_HINT, Model
from oppa.problem.training import Training
from oppa.trials import untrusted_file

if TYPE_CHECKING:  # trials of launch lines import this module, and must start fast
    from oppa.problem.problem import Problem

SPEC, MEASUREMENTS, REPORT, STOP, LAST_STEP = "trial.json", "measurements.jsonl", "outcome.json", "stop", "last_step"
OPENED, REPORTER, RECOGNISED = "opened", "reporter", "recognised"
ABILITIES, ATTEMPT, PAUSED = "abilities.json", "attempt.json", "paused.json"
LINE_BYTES, CALL_BYTES, REPORT_BYTES = 64 << 10, 4 << 20, 1 << 20
"""Longest line of `measurements.jsonl`, most bytes of it that one call reads, and longest `outcome.json`."""
CAUSE, TRACEBACK = 4_000, 64_000
"""Most characters of a cause and of a traceback that are kept."""

Outcome = Literal["completed", "terminated_early", "out_of_memory", "failed", "timed_out", "interrupted"]
"""The ways in which a trial can end. `terminated_early` is the designer's choice, `interrupted` the user's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """Holds everything that a program needs to run one trial. `steps` counts optimizer steps, the first (warm-up) included."""

    study: str
    trial: int
    configuration: Configuration
    stated_model: Model | None
    cluster: Cluster
    training: Training
    steps: int
    memory_limit_enforced: bool = True
    command: LaunchCommand | None = None
    """The launch line that the runner `command` starts; None for other runners."""
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables that parameters of the configuration set, and those that the framework requires and the user has not set."""

    @property
    def model(self) -> Model:
        """Return the model; raises JobError if the job states none, which only a launch line may."""
        if self.stated_model is None:
            raise JobError("the job has no [model], which this runner needs", hint=MODEL_HINT)
        return self.stated_model

    @classmethod
    def of(cls, problem: "Problem", configuration: Configuration, *, study: str, trial: int, steps: int) -> Self:
        """Return the trial that runs one of a problem's configurations."""
        return cls(
            study=study,
            trial=trial,
            configuration=configuration,
            stated_model=problem.stated_model,
            cluster=problem.cluster,
            training=problem.training,
            steps=steps,
            command=problem.launch_line(configuration),
            environment={**lacking(problem.default_variables(configuration)), **problem.variables(configuration)},
        )

    def write(self, folder: Path) -> None:
        """Make the trial folder, and write its `trial.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SPEC, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        values = dataclasses.asdict(self)
        return {**values, "configuration": self.configuration.to_dict(), "model": values.pop("stated_model")}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` has written."""
        values = json.loads((folder / SPEC).read_text())
        model = values.pop("model")
        return cls(
            **{
                **values,
                "configuration": Configuration.from_dict(values["configuration"]),
                "stated_model": Model(**model) if model else None,
                "cluster": Cluster.from_dict(values["cluster"]),
                "training": Training(**values["training"]),
                "command": LaunchCommand.from_dict(values["command"]) if values.get("command") else None,
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Holds the measurement of one optimizer step. `memory_bytes` is the peak so far, maximum over ranks; None if it is not known yet."""

    step: int
    step_time_s: float
    memory_bytes: int | None = None
    loss: float | None = None
    averaged: bool = False
    """True if the time is a mean that covers the step before, too, because the program reports several steps together."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Holds a program's own report of its end: the outcome, the cause, and the rank that failed."""

    outcome: str
    cause: str = ""
    rank: int | None = None
    traceback: str = ""
    time: float | None = None
    """Unix seconds at which it was written."""


class LineReader:
    """Reads a growing file of lines that a program writes; each call yields the complete lines since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[bytes]:
        """Yield the lines appended since the last call; an unfinished last line is left for the next call.

        Raises:
            MeasurementError: a line is too long, or the file is not a regular file.
        """
        data = untrusted_file.read_from(self._path, self._offset, limit_bytes=CALL_BYTES)
        complete, newline, rest = data.rpartition(b"\n")
        if len(rest) > LINE_BYTES:
            raise MeasurementError(f"`{self._path.name}` has a line of over {LINE_BYTES} bytes")
        self._offset += len(complete) + len(newline)
        yield from complete.splitlines()


class MeasurementReader:
    """Reads a growing `measurements.jsonl`; each call yields the measurements since the last call."""

    def __init__(self, folder: Path) -> None:
        self._lines = LineReader(folder / MEASUREMENTS)
        self._step = -1

    def new(self) -> Iterator[Measurement]:
        """Yield the measurements appended since the last call.

        Raises:
            MeasurementError: a line is no measurement, a step does not follow the one before, or the file is not a regular file.
        """
        for line in self._lines.new():
            yield self._following(_measurement(line))

    def _following(self, measurement: Measurement) -> Measurement:
        if measurement.step <= self._step:
            raise MeasurementError(f"step {measurement.step} was reported after step {self._step}")
        self._step = measurement.step
        return measurement


def read_report(folder: Path) -> Report | None:
    """Return the program's own `outcome.json`, or None if it wrote none; raises MeasurementError if the file is not a report."""
    text = untrusted_file.read(folder / REPORT, limit_bytes=REPORT_BYTES)
    if text is None:
        return None
    try:
        values = _known(Report, json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise MeasurementError(plain_text(f"`{REPORT}` is not a report: {error}", limit=CAUSE)) from error
    for name, limit in {"outcome": CAUSE, "cause": CAUSE, "traceback": TRACEBACK}.items():
        values[name] = plain_text(values.get(name, ""), limit=limit)
    return Report(**values)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file atomically: whole or not at all. It may be lost if the machine fails."""
    write_atomically(path, (json.dumps(values, indent=1) + "\n").encode(), durable=False)


_KINDS: dict[type, dict[str, Any]] = {
    Measurement: {"step": int, "step_time_s": int | float, "memory_bytes": int | None, "loss": int | float | None, "averaged": bool},
    Report: {"outcome": str, "cause": str, "rank": int | None, "traceback": str, "time": int | float | None},
}
BOUNDS = {"step": (0, 1 << 53), "step_time_s": (1e-9, 1e9), "memory_bytes": (0, 1 << 60), "rank": (0, 1 << 31), "time": (0, 1e11)}
"""Smallest and largest values that a program can mean; sums of a study's values then stay finite."""


def _measurement(line: bytes) -> Measurement:
    try:
        known = _known(Measurement, json.loads(line))
        return Measurement(**known | {"loss": None if known.get("loss") is None else float(known["loss"])})
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        words = f"`{MEASUREMENTS}` has a line that is not a measurement: {error}"
        raise MeasurementError(plain_text(words, limit=CAUSE)) from error


def _known(record: type[Measurement] | type[Report], values: Any) -> dict[str, Any]:
    """Return the values that a record defines, as programs may write more.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a number is outside its bounds.
    """
    if not isinstance(values, dict):
        raise TypeError(f"{values!r} is not an object")
    known = {name: values[name] for name in _KINDS[record] if name in values}
    for name, value in known.items():
        kind = _KINDS[record][name]
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise TypeError(f"`{name} = {value!r}`")
        if value is not None and name in BOUNDS and not BOUNDS[name][0] <= value <= BOUNDS[name][1]:
            raise ValueError(f"`{name} = {value!r}` is not between {BOUNDS[name][0]:g} and {BOUNDS[name][1]:g}")
    return known
