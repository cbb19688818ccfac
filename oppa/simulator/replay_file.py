"""Read a table of measurements as tasks; `[replay]` of a search space file states what the columns of the table mean.

columns     column names by meaning: FACTS, and every parameter of the space that the table has
units       units of throughput and memory
outcomes    the table's words for how a run ended -> `completed`, `out_of_memory` or `failed`
models      the model for each value of the model column; batch, cluster, training and limits are as in a job file
"""

import dataclasses
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError, SpaceError, nearest, reason, require_known
from oppa.problem.bounded_text import read_text
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import PARAMETERS, Configuration
from oppa.problem.declaration import Bytes, Count, DeclaredTable, Seconds, parse
from oppa.problem.job_file import BatchTable, ModelTable
from oppa.problem.limits_table import LimitsTable
from oppa.problem.model import Model
from oppa.problem.problem import Problem, facts_of
from oppa.problem.settings import parse_settings, validate_with
from oppa.problem.space_file import read_space
from oppa.problem.training_table import TrainingTable
from oppa.regular_file import read_csv
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import Record, Replay, ReplayNoise
from oppa.units import GIB, MIB

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("model", "hosts", "outcome", "throughput", "memory")
RUNNER = "replay"
LARGEST = 1e15
"""Bound on throughputs and memory in any unit, far above what is measured; its inverse is the bound below."""
_STEPS_PER_S: dict[str, Callable[[float, int, int], float]] = {
    "steps/s": lambda value, batch, tokens: value,
    "samples/s": lambda value, batch, tokens: value / batch,
    "tokens/s": lambda value, batch, tokens: value / tokens,
    "s/step": lambda value, batch, tokens: 1 / value,
    "ms/step": lambda value, batch, tokens: 1e3 / value,
}
_BYTES = {"bytes": 1, "MiB": MIB, "GiB": GIB, "GB": 10**9}


class UnitsTable(DeclaredTable):
    """Validates `[replay.units]`."""

    throughput: Literal["steps/s", "samples/s", "tokens/s", "s/step", "ms/step"]
    memory: Literal["bytes", "MiB", "GiB", "GB"] = "bytes"


class NoiseTable(DeclaredTable):
    """Validates `[replay.noise]`."""

    trial: float = Field(default=0.03, ge=0)
    step: float = Field(default=0.03, ge=0)
    setup: Seconds = 60.0


class ReplayClusterTable(DeclaredTable):
    """Validates `[replay.cluster]`, which all rows share; the number of hosts is a column."""

    devices_per_host: Count
    device: str
    memory_limit: Bytes


class ReplayTable(DeclaredTable):
    """Validates `[replay]`."""

    table: str
    source: str
    task: list[str]
    headline_hosts: Count | None = None
    columns: dict[str, str]
    units: UnitsTable
    outcomes: dict[str, Literal["completed", "out_of_memory", "failed"]]
    noise: NoiseTable = NoiseTable()
    batch: BatchTable
    cluster: ReplayClusterTable
    training: TrainingTable = TrainingTable()
    limits: LimitsTable = LimitsTable()
    models: dict[str, ModelTable]


class _Replayed(DeclaredTable):
    """Validates the part of a search space file that is about replay."""

    replay: ReplayTable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFile:
    """Holds a search space file with a validated `[replay]`."""

    path: Path
    text: str
    replay: ReplayTable

    def model(self, name: str) -> Model:
        """Return the model for a value of the model column; raises InputError if the file does not describe it."""
        if name not in self.replay.models:
            hint = f"describe it under `[replay.models.{name}]`, as {', '.join(self.replay.models)}"
            raise InputError(f"`{self.path.name}` does not describe the model `{name}`", hint=hint)
        return self.replay.models[name].record()


def is_replay_file(path: Path) -> bool:
    """Return whether a file is TOML with a `[replay]`; False if it cannot be read, or is something else."""
    try:
        return "replay" in parse(read_text(path), source=path.name, error=InputError)
    except InputError:
        return False


def load_task(path: Path, settings: Sequence[str] = ()) -> BenchmarkTask:
    """Return one of the tasks of a search space file with `[replay]`.

    Args:
        settings: `task=NAME` names the task; others change keys, such as `replay.table=FILE.csv`. A table is looked for in the file's
            folder, then in the present folder, then in that of published measurements.

    Raises:
        InputError: there is no such task, or the file or its table is wrong.
        EnvironmentLackingError: its table is missing.
    """
    name = parse_settings(settings).get("task")
    file = read_replay_file(path, [word for word in settings if word.partition("=")[0].strip() != "task"])
    tasks = {task.name: task for task in replay_tasks(file, read_table(file, _table(path, file.replay.table)))}
    if name is None:
        raise InputError(f"`{path}` has several tasks", hint=f"name one of {', '.join(tasks)} with `--set task=NAME`")
    require_known(str(name), tasks, f"`{path}` has no task `{name}`")
    return tasks[str(name)]


def _table(path: Path, name: str) -> Path:
    """Return the path of a file's table."""
    found = next((folder / name for folder in (path.parent, Path(), catalog.data_folder()) if (folder / name).is_file()), None)
    if found is None:
        hint = "name the table: `--set replay.table=CSV`, or its folder: `OPPA_DATA=...`"
        raise EnvironmentLackingError(f"`{catalog.data_folder() / name}` does not exist", hint=hint)
    return found


def read_replay_file(path: Path, settings: Sequence[str] = ()) -> ReplayFile:
    """Return the validated file; raises SpaceError if it is wrong, InputError if it cannot be read.

    Args:
        settings: Changes of keys of `[replay]`, such as `replay.limits.trials=20`.
    """
    text = read_text(path, hint="name a search space file with `[replay]`")
    declared = parse(text, source=path.name, error=SpaceError)
    if "replay" not in declared:
        raise SpaceError(f"`{path.name}` has no `[replay]`", hint="describe the columns of the table there, as nanotron-h100.toml does")
    table = validate_with(_Replayed, {"replay": declared["replay"]}, settings, error=SpaceError).replay
    for name in table.columns:
        require_known(
            name, {*FACTS, *PARAMETERS, *declared.get("parameters", {})}, f"`[replay.columns]`: `{name}` is unknown", error=SpaceError
        )
    for name in ("model", "hosts", "outcome", "throughput", "dp", "tp", "pp", "micro_batch"):
        if name not in table.columns:
            raise SpaceError(f"`[replay.columns]` lacks `{name}`", hint=f'add `{name} = "..."` with the name of its column')
    return ReplayFile(path=path, text=text, replay=table)


def read_table(file: ReplayFile, table: Path) -> "pd.DataFrame":
    """Return the table's rows unchanged; raises InputError if it cannot be read, has no rows, or lacks a column or a task."""
    import pandas as pd

    try:
        rows = pd.read_csv(read_csv(table))
    except (OSError, ValueError) as error:
        raise InputError(f"`{table}` is not a table of measurements: {reason(error)}", hint="name a CSV file: `--table CSV`") from None
    if not isinstance(rows.index, pd.RangeIndex):
        raise InputError(f"`{table}` has lines of more values than columns", hint="give each value a column, or remove it")
    for column in (*file.replay.columns.values(), *file.replay.task):
        if column not in rows:
            raise InputError(f"`{table}` has no column `{column}`, which `{file.path.name}` names", hint=nearest(column, rows.columns))
    if rows.empty:
        raise InputError(f"`{table}` has no rows", hint="add measurements, one in each row")
    for column in file.replay.task:
        if empty := int(rows[column].isna().sum()):
            raise InputError(
                f"`{table}` has {empty} rows without `{column}`, which names their task", hint="fill these cells, or remove the rows"
            )
    return rows


def replay_tasks(file: ReplayFile, rows: "pd.DataFrame", noise: ReplayNoise | None = None) -> Iterator[BenchmarkTask]:
    """Yield one task per combination of values in the task columns, sorted; `noise` replaces the file's if given."""
    given = file.replay.noise
    noise = noise or ReplayNoise(trial=given.trial, step=given.step, setup_s=given.setup)
    for values, some in rows.groupby(file.replay.task):
        yield _task(file, "-".join(map(str, values)), some, noise)


def _task(file: ReplayFile, name: str, rows: "pd.DataFrame", noise: ReplayNoise) -> BenchmarkTask:
    parameters = {meaning: column for meaning, column in file.replay.columns.items() if meaning not in FACTS}
    problem = _problem(file, name, rows)
    space = problem.space.from_rows({meaning: rows[column].tolist() for meaning, column in parameters.items()})
    problem = dataclasses.replace(problem, space=space)
    records: dict[Configuration, Record] = {}
    for row in rows.to_dict("records"):
        given = {meaning: row[column] for meaning, column in parameters.items()}
        configuration = space.configuration({"global_batch": problem.global_batch, **given})
        record = _record(file, row, problem)
        records[configuration] = max(records.get(configuration, record), record, key=lambda each: each.steps_per_s or 0.0)
    largest = file.replay.headline_hosts
    return BenchmarkTask(
        name=name,
        problem=problem,
        candidates=problem.candidates(),
        simulator=Replay(records=records, noise=noise),
        headline=largest is None or problem.cluster.hosts <= largest,
    )


def _problem(file: ReplayFile, name: str, rows: "pd.DataFrame") -> Problem:
    """Return the problem that all rows of a task share; raises InputError if they differ in model or hosts."""
    common = {meaning: rows[file.replay.columns[meaning]].unique() for meaning in ("model", "hosts")}
    for meaning, values in common.items():
        if len(values) > 1:
            raise InputError(f"the task `{name}` has several values of `{meaning}`", hint="add its column to `task` under `[replay]`")
    declared = file.replay.cluster
    model, training = file.model(str(common["model"][0])), file.replay.training.record(file.path.parent)
    cluster = Cluster(
        hosts=_whole(file.replay.columns["hosts"], common["hosts"][0], name),
        devices_per_host=declared.devices_per_host,
        device=declared.device,
        memory_limit_bytes=declared.memory_limit,
    )
    batch = file.replay.batch.global_batch
    return Problem(
        name=name,
        stated_model=model,
        global_batch=batch,
        cluster=cluster,
        runner=catalog.find("runners", RUNNER),
        training=training,
        space=read_space(file.text, name=file.path.stem, facts=facts_of(model, batch, cluster, training)),
        limits=file.replay.limits.record(),
    )


def _record(file: ReplayFile, row: Mapping[Hashable, Any], problem: Problem) -> Record:
    """Return the record of a row.

    Raises:
        InputError: the outcome is unknown, a completed run has no positive throughput or no positive memory, or a value is not a number.
    """
    columns, units = file.replay.columns, file.replay.units
    word = str(row[columns["outcome"]])
    require_known(word, file.replay.outcomes, f"`{columns['outcome']} = {word}` is not a known outcome")
    outcome = file.replay.outcomes[word]
    if outcome != "completed":
        return Record(outcome=outcome)
    measured = _number(row, columns["throughput"], problem)
    memory = _number(row, columns["memory"], problem) if "memory" in columns else math.nan
    if not 1 / LARGEST < measured < LARGEST:
        raise InputError(f"a run of `{problem.name}` completed with `{columns['throughput']} = {measured}`", hint="write a positive number")
    if not (math.isnan(memory) or 0 < memory < LARGEST):
        raise InputError(
            f"a run of `{problem.name}` needed `{columns['memory']} = {memory}`", hint="write a positive number, or leave it empty"
        )
    rate = _STEPS_PER_S[units.throughput](measured, problem.global_batch, problem.global_batch * problem.model.seq_len)
    return Record(outcome=outcome, steps_per_s=rate, memory_bytes=None if math.isnan(memory) else round(memory * _BYTES[units.memory]))


def _whole(column: str, value: Any, task: str) -> int:
    """Return a number of hosts; raises InputError if it is not a whole number from 1 on."""
    text = str(value).removesuffix(".0")
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) < 1:
        raise InputError(f"`{column} = {value}` of `{task}` is not a number of hosts", hint="write a whole number from 1 on")
    return int(text)


def _number(row: Mapping[Hashable, Any], column: str, problem: Problem) -> float:
    try:
        return float(row[column])
    except (ValueError, OverflowError):
        raise InputError(f"`{column} = {row[column]}` of `{problem.name}` is not a number", hint="correct that row of the table") from None
