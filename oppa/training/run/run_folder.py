"""Read and write the folder of a run.

run.json                the problem, the first configuration and the planned changes (RunSpec)
steps.jsonl             the ledger: a line per optimizer step and per other event (`ledger`)
checkpoints/step-N/     the training state after N steps (`checkpoint`); only the newest ones are kept
checkpoints/step-N.unusable/    one that could not be resumed, as a damaged one
profiled/               the throughput table from which configurations are chosen, if there is one
orders/                 searched schedules by configuration (`oppa.pipeline.stored_schedules`), found by the run or copied from a table
scale-table/            the output of `oppa scale-table`, with its own schedules
attempts/NNNN/          one trial folder for each start of the ranks, with their output and result
stop                    requests that the training process saves the run and stops; other processes create it
"""

import contextlib
import dataclasses
import fcntl
import operator
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from oppa.errors import RunError
from oppa.private_files import close_to_others, open_private
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import SAME_RESULTS
from oppa.regular_file import read_json
from oppa.study.stored_problem import CHANGED, sha256
from oppa.trials.trial_folder import write_json

SPEC, CHECKPOINTS, ATTEMPTS, PROFILED, LOCK = "run.json", "checkpoints", "attempts", "profiled", ".lock"
SCALES = "scale-table"
STOP = "stop"
"""File that requests, like Ctrl-C, that the training process saves the run and stops; it is removed when training begins."""
VERSION = 1
MAY_CHANGE = ("name", "entry_point", "learning_rate", *SAME_RESULTS)
"""Fields that may change when a run resumes: the model's name and code location, the learning rate, and fields that change at most
rounding."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Describes a planned change: the configuration to use from sample number `samples` on."""

    samples: int
    configuration: Configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Holds the problem and the configurations of a run; `problem.run_options` has the details of training."""

    uuid: str
    problem: Problem
    configuration: Configuration
    """The first configuration."""
    plan: tuple[Planned, ...] = ()
    """Planned changes, in the order of their samples."""
    policy: str = ""
    """Name of the policy that changes batches and layout during training; empty for none."""

    def write(self, folder: Path) -> None:
        """Create the run's folder, and write `run.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = [{"samples": due.samples, "configuration": due.configuration.to_dict()} for due in self.plan]
        problem = self.problem.to_dict()
        body = {"uuid": self.uuid, "problem": problem, "configuration": self.configuration.to_dict(), "plan": plan}
        write_json(folder / SPEC, {"version": VERSION, **body, "policy": self.policy, "problem_sha256": sha256(problem)})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the result of `write`.

        Raises:
            RunError: if `run.json` is missing, damaged or of another version.
        """
        try:
            values: dict[str, Any] = read_json(folder / SPEC)
            version = values["version"]
        except FileNotFoundError:
            raise RunError(f"`{folder}` is not a run: it has no `{SPEC}`", hint="make one: `oppa train JOB --run FOLDER`") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(folder, error) from None
        if version != VERSION:
            raise RunError(
                f"`{folder}` has format {version}, but this version of oppa reads {VERSION}", hint="use the version of oppa that wrote it"
            )
        try:
            return cls._parsed(values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(folder, error) from None

    @classmethod
    def _parsed(cls, values: Mapping[str, Any]) -> Self:
        if values.get("problem_sha256", sha256(values["problem"])) != sha256(values["problem"]):
            raise ValueError(f"`problem`: {CHANGED}")
        plan = ((operator.index(due["samples"]), Configuration.checked(due["configuration"])) for due in values["plan"])
        return cls(
            uuid=values["uuid"],
            problem=Problem.from_dict(values["problem"]),
            configuration=Configuration.checked(values["configuration"]),
            plan=tuple(Planned(samples=samples, configuration=configuration) for samples, configuration in plan),
            policy=values.get("policy", ""),
        )

    def require_continued_by(self, problem: Problem, folder: Path) -> None:
        """Check that the run can be resumed as `problem`: same model, same training but for `MAY_CHANGE`, same batch.

        Raises:
            RunError: names the first field that differs.
        """
        for part, ours, theirs in (("model", self.problem.model, problem.model), ("training", self.problem.training, problem.training)):
            for name, value in dataclasses.asdict(ours).items():
                if (other := getattr(theirs, name)) != value and name not in MAY_CHANGE:
                    restored = f"set `{name} = {value}` in [{part}]" if value not in (None, "") else f"leave out `{name}` of [{part}]"
                    raise RunError(
                        f"`{folder}` is a run of another job: `{name} = {value}`, not {other}",
                        hint=f"{restored}, or name another folder with --run",
                    )
        began, asked = self.problem.global_batch, problem.global_batch
        unstated = began == self.problem.cluster.devices and asked == problem.cluster.devices  # a job without [batch]
        if began != asked and not unstated:
            message = f"`{folder}` is a run of another job: it began with `global_batch = {began}`, not {asked}"
            hint = (
                f"leave {began} in [batch]; with a `--table` that has batch {asked}, `global_batch={asked}` after the job changes the batch"
            )
            raise RunError(message, hint=hint)

    def planned(self, samples: int) -> Configuration:
        """Return the planned configuration of the step that begins with this sample."""
        due = [planned.configuration for planned in self.plan if planned.samples <= samples]
        return due[-1] if due else self.configuration


def _damaged(folder: Path, error: Exception) -> RunError:
    return RunError(f"`{folder / SPEC}` is damaged: {error!r}", hint="start a new run, or restore the file")


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, newest first; incomplete ones have another name."""
    found = [path for path in (folder / CHECKPOINTS).glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(found, key=steps_of, reverse=True)


def checkpoint_of(folder: Path, steps: int) -> Path:
    """Return the folder of the checkpoint after this many steps."""
    return folder / CHECKPOINTS / f"step-{steps}"


def steps_of(checkpoint: Path) -> int:
    """Return the number of steps after which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def set_aside(checkpoint: Path) -> Path:
    """Rename a checkpoint that cannot be resumed, so that it is none of the run's any more; return its present path."""
    aside = checkpoint.with_name(f"{checkpoint.name}.unusable")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        return checkpoint.rename(aside)
    except OSError:  # a checkpoint of the same step is then refused, and the run fails instead of ending without its last state
        return checkpoint


def remove_drafts(folder: Path) -> None:
    """Remove incomplete checkpoints, which killed ranks have left."""
    for draft in (folder / CHECKPOINTS).glob(".step-*.partial"):
        shutil.rmtree(draft, ignore_errors=True)


def attempts_of(folder: Path) -> dict[int, Path]:
    """Return the folders of a run's attempts by their numbers; any other name, which a trainer may have chosen, is none."""
    return {int(path.name): path for path in (folder / ATTEMPTS).glob("[0-9]*") if re.fullmatch("[0-9]{1,9}", path.name)}


def new_attempt(folder: Path) -> Path:
    """Create the folder of the next attempt, for the owner alone, and return it."""
    attempt = folder / ATTEMPTS / f"{max(attempts_of(folder), default=0) + 1:04d}"
    close_to_others(attempt)
    return attempt


@contextlib.contextmanager
def held(folder: Path, *, done: str = "trained") -> Iterator[None]:
    """Lock a folder for this process; the kernel releases the lock when the process ends.

    Args:
        folder: Folder to lock; it is created if it is missing.
        done: Participle of the activity, for the error message.

    Raises:
        RunError: if another process holds the lock, or the folder cannot be written.
        InputError: if the lock is not a file of the user's own.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_private(folder / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RunError(f"`{folder}` cannot be used: {error.strerror}", hint="name a folder that you may write to") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"`{folder}` is being {done} by another process", hint="wait for its end, or name another folder") from None
        yield
    finally:
        os.close(descriptor)
