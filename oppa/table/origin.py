"""Record where a table comes from, and check that it holds here.

A table of another job or machine is foreign; one of other software is stale.
"""

import dataclasses
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from oppa import __version__
from oppa.errors import TableError
from oppa.problem.detect import this_machine
from oppa.problem.problem import Problem

SCHEMA_VERSION = 3
"""Version of the files that hold a table; `oppa.table.files` migrates those of earlier versions."""

SCALE_TABLE = "make one for this job: `oppa scale-table JOB --devices FIRST..LAST -- COMMAND`"
"""Hint of errors on the scale table of an elastic job."""

Method = Literal["active", "exhaustive", "predicted"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFingerprint:
    """Describes the machine that ran the trials: what throughput depends on, and its memory."""

    cpu: str
    cores: float
    memory_bytes: int
    gpu: str = ""
    gpus: int = 0
    gpu_memory_bytes: int = 0

    @classmethod
    def here(cls, root: Path = Path("/")) -> Self:
        """Return this machine, within the limits of its control group."""
        return cls(cpu=_cpu(root), **dataclasses.asdict(this_machine(root)))

    @property
    def words(self) -> str:
        """Return a description in one line: `2 cores of Intel Xeon, 4 x H100`."""
        return f"{self.cores:g} cores of {self.cpu}" + (f", {self.gpus} x {self.gpu}" if self.gpus else "")

    def is_like(self, other: "HardwareFingerprint") -> bool:
        """Return whether trials run equally fast on both machines. More memory or more GPUs of the same kind make none of them faster."""
        return (self.cpu, self.cores, self.gpu) == (other.cpu, other.cores, other.gpu)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Describes the origin of a table. All of it is written to `table.meta.json`."""

    problem: Mapping[str, Any]
    """The parts of the problem that decide throughput: model, cluster, precision, runner, and the user's own command."""
    study: str
    """The uuid of the study whose trials the table rests on."""
    method: Method
    """Candidates that were tried: those that could change a decision, every one, or none (all is predicted from a run)."""
    complete: bool
    """True if the profile came to its end; false if it was interrupted, or its budget was spent."""
    loss_bound: float | None = None
    """Largest expected loss of goodput that an active profile accepts, as a fraction."""
    expected_loss: float | None = None
    """The expected loss in the end, as a fraction; None if it is unknown, or all was measured."""
    candidates: int
    """Number of valid configurations of the search space, over all batch sizes."""
    pruned: int = 0
    """Number of these that were left out: they ran out of memory, or are predicted to."""
    trials: int
    """Number of trials that ran, whatever their outcome."""
    spent_s: float
    """Seconds that the trials took."""
    training_steps: int = 0
    """Number of optimizer steps of training runs that have refined the table since."""
    command: str = ""
    created_at: float
    """Seconds since 1970."""
    versions: Mapping[str, str]
    """Versions of oppa, torch and Python."""
    hardware: HardwareFingerprint | None
    """The machine; None if trials are simulated: they are as fast on any machine, with any torch."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(cls, problem: Problem, *, simulated: bool = False, **facts: Any) -> Self:
        """Return the origin of a table that is made here and now; `facts` are all other fields."""
        hardware = None if simulated else HardwareFingerprint.here()
        return cls(problem=decisive(problem), versions=versions_here(), hardware=hardware, **facts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the origin that `to_dict` converted; raises KeyError, TypeError or ValueError for other values."""
        hardware = HardwareFingerprint(**values["hardware"]) if values["hardware"] else None
        given = cls(**{**values, "hardware": hardware})  # an unknown or missing field is an error here, and ignored below
        try:
            found = TypeAdapter(cls).validate_python(dataclasses.asdict(given))
        except ValidationError as error:
            (first, *_) = error.errors()
            raise ValueError(f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}") from None
        if not {"oppa", "torch"} <= found.versions.keys() or not isinstance(found.problem.get("model"), dict):
            raise ValueError("its model or its versions are missing")
        return found

    def require_for(self, problem: Problem, *, here: HardwareFingerprint | None = None) -> None:
        """Refuse a problem, a machine or versions for whose throughputs this table does not hold.

        The machine is checked if the job has one host. This process need not run on the hosts of a larger cluster.

        Args:
            here: The machine to check; this one unless given.

        Raises:
            TableError: names the first thing that differs, with both values.
        """
        self._require_problem(problem)
        if self.versions["oppa"].split(".")[:2] != versions_here()["oppa"].split(".")[:2]:
            raise _stale("oppa", self.versions["oppa"], versions_here()["oppa"])
        if self.hardware is None:
            return
        if self.versions["torch"] != versions_here()["torch"]:
            raise _stale("torch", self.versions["torch"], versions_here()["torch"])
        here = here or HardwareFingerprint.here()
        if problem.cluster.hosts == 1 and not self.hardware.is_like(here):
            raise TableError(
                f"the table is foreign: it was measured on {self.hardware.words}, but this machine is {here.words}", hint=_AGAIN
            )

    def require_model_of(self, problem: Problem) -> None:
        """Refuse a problem with another model, wherever it runs; raises TableError, which names the first thing that differs."""
        for name, ours, theirs in _differences(self.problem["model"], decisive(problem)["model"]):
            message = f"the table is for another model: it was made with `{name} = {ours}`, but this model has {theirs}"
            raise TableError(message, hint="use a table and a run of the same model")

    def require_program_of(self, problem: Problem) -> None:
        """Refuse a problem whose ranks run another program, on any number of hosts.

        Raises:
            TableError: names the first part of the model, the training, the runner or the launch line that differs, with both values.
        """
        self.require_model_of(problem)
        ours, theirs = ({name: value for name, value in each.items() if name != "cluster"} for each in (self.problem, decisive(problem)))
        for name, own, other in _differences(ours, theirs):
            message = f"the table is for another program: it was made with `{name} = {own}`, but this job has {other}"
            raise TableError(message, hint=SCALE_TABLE)

    def require_launch_line(self, *, is_given: bool) -> None:
        """Raise TableError if the table is that of a launch line, and a job has none."""
        if "command" in self.problem and not is_given:
            line = shlex.join(self.problem["command"]["argv"])
            message = f"the table is for another program: it was made with the launch line `{line}`, but this job has none"
            raise TableError(message, hint="repeat the launch line after `--`")

    def _require_problem(self, problem: Problem) -> None:
        for name, ours, theirs in _differences(self.problem, decisive(problem)):
            raise TableError(f"the table is foreign: it was made with `{name} = {ours}`, but this job has {theirs}", hint=_AGAIN)


def decisive(problem: Problem) -> dict[str, Any]:
    """Return the parts of a problem that decide the throughput of its configurations, as JSON values; the rows hold the batch sizes."""
    values, training = problem.to_dict(), problem.training
    entry_point = problem.model.entry_point.partition(":")[2]  # wherever its folder lies
    found = {
        "model": {name: value for name, value in values["model"].items() if name not in ("name", "config")} | {"entry_point": entry_point},
        "cluster": values["cluster"],
        "training": {"precision": training.precision, **({"optimizer": training.optimizer} if training.optimizer != "adamw" else {})},
        "runner": problem.runner.name,
        **({"command": values["command"]} if problem.command else {}),
    }
    return dict(json.loads(json.dumps(found)))


def versions_here() -> dict[str, str]:
    """Return the versions of what this process runs: oppa, torch and Python."""
    return {"oppa": __version__, "torch": importlib.metadata.version("torch"), "python": platform.python_version()}


_AGAIN = "make one for this job and machine: `oppa profile JOB --global-batch FIRST..LAST --table FOLDER`"


def _stale(name: str, then: str, now: str) -> TableError:
    return TableError(f"the table is stale: it was made with {name} {then}, but {now} is installed", hint=_AGAIN)


def _differences(ours: Any, theirs: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each value that differs: its dotted name, and both values as JSON."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in dict.fromkeys([*ours, *theirs]):
            yield from _differences(ours.get(key), theirs.get(key), f"{name}.{key}" if name else key)
    elif ours != theirs:
        yield name, json.dumps(ours), json.dumps(theirs)


def _cpu(root: Path) -> str:
    """Return the processor's model; the architecture if the kernel names no model."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
