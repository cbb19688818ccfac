"""Load the tasks of a suite of `oppa.bench.suites`, or of another search space file with `[replay]`."""

import dataclasses
import math
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oppa import catalog
from oppa.bench import declared
from oppa.bench.black_box import black_box_tasks
from oppa.bench.declared import CPU_JOB, CPU_TABLE, DATA
from oppa.bench.scores import natural
from oppa.bench.suites import ALL, MISLED_REPLAYS, SUITES
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.configuration import PARAMETERS, Configuration
from oppa.problem.job import load_job
from oppa.report.inputs import Inputs
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import Record, Replay, ReplayNoise
from oppa.simulator.replay_file import read_replay_file, read_table, replay_tasks
from oppa.simulator.simulator import Simulator
from oppa.study.records import SEARCH


def load_suite(suite: str, table: Path | None = None, noise: ReplayNoise | None = None) -> list[BenchmarkTask]:
    """Return all tasks of a suite.

    Args:
        table: Replaces the table that the suite names.
        noise: Replaces the noise that the suite declares.

    Raises:
        InputError: there is no such suite, or its file or table is wrong.
        EnvironmentLackingError: its table is missing.
    """
    known = SUITES.get(suite)
    if known and known.source != "table":
        if table:
            raise InputError(f"the suite `{suite}` has no table", hint="omit `--table`, or use `--suite replay`")
        return _built(suite, noise)
    file = read_replay_file(_declaration(suite))
    return list(replay_tasks(file, read_table(file, table or _table(suite, file.replay.table)), noise))


def suite_inputs(suite: str, table: Path | None = None) -> Inputs:
    """Return the inputs that define a suite's tasks, and those that designers read.

    Raises:
        InputError: there is no such suite.
        EnvironmentLackingError: its table is missing.
    """
    if suite in SUITES and table is None:
        return SUITES[suite].declared.inputs()
    declaration = _declaration(suite)
    name = read_replay_file(declaration).replay.table
    found = table or _table(suite, name)
    if suite not in SUITES:
        return declared.replay_inputs(declaration, found, name=name)
    known = SUITES[suite].declared.inputs()
    return dataclasses.replace(known, files={**known.files, f"{DATA}{name}": declared.content_hash(found)})


def cpu_task() -> BenchmarkTask:
    """Return the task of `examples/cpu.toml`, with its 70 measured configurations and the recorded noise of steps and of repeats.

    Raises:
        EnvironmentLackingError: the example is missing, because this is no checkout.
    """
    root = catalog.root()
    if not (root / CPU_JOB).is_file():
        raise EnvironmentLackingError(f"`{root / CPU_JOB}` does not exist", hint="run it from a checkout")
    problem = load_job(root / CPU_JOB)
    table = pd.read_csv(root / CPU_TABLE)
    searched = table[table.purpose == SEARCH]
    knobs = [name for name in PARAMETERS if name in table.columns]  # the table may predate some parameters
    records = {Configuration.from_dict({name: row[name] for name in knobs}): _record(row) for row in searched.to_dict("records")}
    rates = table[table.outcome == "completed"].groupby(knobs).steps_per_s
    spreads = [float(np.log(group).std()) for _, group in rates if len(group) > 2]
    noise = ReplayNoise(trial=statistics.mean(spreads), setup_s=float(searched.setup_s.median()))
    return BenchmarkTask(name="cpu", problem=problem, candidates=problem.candidates(), simulator=Replay(records=records, noise=noise))


def simulated_tasks(suite: str = "simulated") -> Iterator[BenchmarkTask]:
    """Yield the simulated jobs that a suite declares; other job files in their folder do not join it."""
    for job in SUITES[suite].declared.jobs:
        problem = load_job(catalog.root() / job)
        yield BenchmarkTask(name=job.stem, problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))


def spread(tasks: Sequence[BenchmarkTask], most: int) -> list[BenchmarkTask]:
    """Return at most so many tasks, evenly spaced in their natural order: headline tasks, or others if there are none."""
    ordered = sorted(tasks, key=lambda task: natural(task.name))
    kept = [task for task in ordered if task.headline] or ordered
    return kept if len(kept) <= most else [kept[i] for i in np.linspace(0, len(kept) - 1, most).round().astype(int)]


def _built(suite: str, noise: ReplayNoise | None) -> list[BenchmarkTask]:
    """Return the tasks of a suite that is no table; `noise` replaces that of replayed tasks among them."""
    source = SUITES[suite].source
    if source == "programs":
        return list(black_box_tasks())
    if source == "measured":
        return [cpu_task()]
    replayed = spread(load_suite("replay", noise=noise), MISLED_REPLAYS) if source == "misled" else []
    return [*replayed, *simulated_tasks(suite)]


def _declaration(suite: str) -> Path:
    if suite in SUITES:
        return _replay_file(SUITES[suite].replay)
    if not suite.endswith(".toml"):
        raise InputError(
            f"`{suite}` is not a suite", hint=f"use one of {', '.join((*SUITES, ALL))}, or a search space file with `[replay]`"
        )
    return catalog.find("search_spaces", suite if "/" in suite else f"./{suite}")


def _replay_file(name: str) -> Path:
    """Return the search space file of a suite's table; raises EnvironmentLackingError if it belongs to data that are missing."""
    path = catalog.data_folder() / name.removeprefix(DATA) if name.startswith(DATA) else catalog.root() / name
    if not path.is_file():
        raise EnvironmentLackingError(f"`{path}` does not exist", hint="name the folder of the data: `OPPA_DATA=...`")
    return path


def _table(suite: str, name: str) -> Path:
    """Return the path of a suite's table, in the folder of its declaration or else in that of published measurements."""
    local = _declaration(suite).parent / name
    path = local if local.is_file() else catalog.data_folder() / name
    if not path.is_file():
        raise EnvironmentLackingError(f"`{path}` does not exist", hint="name the table: `--table CSV`, or its folder: `OPPA_DATA=...`")
    return path


def _record(row: Mapping[Hashable, Any]) -> Record:
    if row["outcome"] != "completed":
        return Record(outcome=row["outcome"])
    noise = row["stddev"] / row["steps_per_s"] * math.sqrt(row["steps"] - 1)
    return Record(outcome="completed", steps_per_s=row["steps_per_s"], memory_bytes=int(row["memory_bytes"]), step_noise=noise)
