"""The folder of a run: what is trained, and all that was done.

run.json                what to train, in which configuration to begin, and what is planned (RunSpec)
steps.jsonl             the ledger: a line per optimizer step (`ledger`)
checkpoints/step-N/     the training state behind N steps (`checkpoint`); the newest few
profiled/               the table that it is chosen from, where there is one
orders/                 searched orders by configuration (`oppa.pipeline.stored_orders`): found by the run, or brought by a table
scale-table/            what `oppa scale-table` wrote, with its own orders
attempts/NNNN/          a folder as a trial's for each start of the ranks: their words, and how they ended
stop                    asks whoever trains the run to save it and stop; made by others
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from oppa.errors import RunError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import SAME_RESULTS
from oppa.trials.wire import write_json

SPEC, CHECKPOINTS, ATTEMPTS, PROFILED, LOCK = "run.json", "checkpoints", "attempts", "profiled", ".lock"
SCALES = "scale-table"
STOP = "stop"
"""A file that asks whoever trains the run to save it and stop, as Ctrl-C does; it goes when training begins."""
VERSION = 1
MAY_CHANGE = ("name", "entry_point", "learning_rate", *SAME_RESULTS)
"""What a run may go on with otherwise: how its model is called, where its code lies, and how fast it learns."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Another configuration from a sample on."""

    samples: int
    configuration: Configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a run trains. `problem.recipe` says how."""

    uuid: str
    problem: Problem
    configuration: Configuration
    """To begin in."""
    plan: tuple[Planned, ...] = ()
    """What follows, in the order of its samples."""
    policy: str = ""
    """Who chooses batches and layout meanwhile, by name; nobody unless given."""

    def write(self, folder: Path) -> None:
        """Make the run's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = [{"samples": due.samples, "configuration": due.configuration.to_dict()} for due in self.plan]
        body = {"uuid": self.uuid, "problem": self.problem.to_dict(), "configuration": self.configuration.to_dict(), "plan": plan}
        write_json(folder / SPEC, {"version": VERSION, **body, "policy": self.policy})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The inverse of `write`.

        Raises:
            RunError: if there is none, or it is damaged or of another version.
        """
        try:
            values: dict[str, Any] = json.loads((folder / SPEC).read_text())
            version = values["version"]
        except FileNotFoundError:
            raise RunError(f"`{folder}` is no run: it has no `{SPEC}`", hint="`oppa train JOB --run FOLDER` makes one") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"`{folder / SPEC}` is damaged: {error}", hint="start a new run, or put the file back") from None
        if version != VERSION:
            raise RunError(f"`{folder}` has format {version}", hint=f"this version of oppa reads format {VERSION}")
        return cls(
            uuid=values["uuid"],
            problem=Problem.from_dict(values["problem"]),
            configuration=Configuration.from_dict(values["configuration"]),
            plan=tuple(
                Planned(samples=due["samples"], configuration=Configuration.from_dict(due["configuration"])) for due in values["plan"]
            ),
            policy=values.get("policy", ""),
        )

    def require_continued_by(self, problem: Problem, folder: Path) -> None:
        """Refuse to go on as something else: another model, or other data.

        Raises:
            RunError: names the first value that differs.
        """
        for part, ours, theirs in (("model", self.problem.model, problem.model), ("training", self.problem.training, problem.training)):
            for name, value in dataclasses.asdict(ours).items():
                if (other := getattr(theirs, name)) != value and name not in MAY_CHANGE:
                    raise RunError(
                        f"`{folder}` is the run of another job: `{name} = {value}`, not {other}",
                        hint=f"set `{name} = {value}` in [{part}], or name another folder with --run",
                    )

    def planned(self, samples: int) -> Configuration:
        """The configuration for the step that begins with this sample."""
        due = [planned.configuration for planned in self.plan if planned.samples <= samples]
        return due[-1] if due else self.configuration


def checkpoints(folder: Path) -> list[Path]:
    """A run's checkpoints, newest first; whole ones, as an unfinished one has another name."""
    found = [path for path in (folder / CHECKPOINTS).glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=steps_of, reverse=True)


def checkpoint_of(folder: Path, steps: int) -> Path:
    """Where the state behind so many steps is saved."""
    return folder / CHECKPOINTS / f"step-{steps}"


def steps_of(checkpoint: Path) -> int:
    """Behind how many steps it was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def new_attempt(folder: Path) -> Path:
    """The folder of the next attempt; it is made."""
    numbers = [int(path.name) for path in (folder / ATTEMPTS).glob("[0-9]*") if path.name.isdigit()]
    attempt = folder / ATTEMPTS / f"{max(numbers, default=0) + 1:04d}"
    attempt.mkdir(parents=True)
    return attempt


@contextlib.contextmanager
def held(folder: Path, *, done: str = "trained") -> Iterator[None]:
    """Hold a folder, which one process may work on at a time; the kernel lets go of it with its holder.

    Args:
        done: What that does with it, for people.

    Raises:
        RunError: if another process does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"`{folder}` is being {done} by another process", hint="wait for its end, or name another folder") from None
        yield
    finally:
        os.close(descriptor)
