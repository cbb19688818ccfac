"""Load the tasks of each suite, on which designers are compared.

Suites:
    replay       nanotron's published runs on H100 (search_spaces/nanotron-h100.toml)
    simulated    OPPA's six scenarios (runners/simulated/jobs), by name
    cpu          the CPU job whose configurations were all measured (results/cpu-exhaustive)
    FILE.toml    another search space file with `[replay]`
"""

import dataclasses
import math
import statistics
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oppa import catalog
from oppa.bench import declared
from oppa.bench.declared import CPU_JOB, CPU_TABLE, simulated_job
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.configuration import PARAMETERS, Configuration
from oppa.problem.job import load_job
from oppa.report.inputs import Inputs
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import Record, Replay, ReplayNoise
from oppa.simulator.replay_file import read_replay_file, read_table, replay_tasks
from oppa.simulator.simulator import Simulator
from oppa.study.records import SEARCH

SUITES = tuple(declared.SUITES)
NANOTRON = "nanotron-h100"


def load_suite(suite: str, table: Path | None = None, noise: ReplayNoise | None = None) -> list[BenchmarkTask]:
    """Return all tasks of a suite.

    Args:
        table: Replaces the table that the suite names.
        noise: Replaces the noise that the suite declares.

    Raises:
        InputError: there is no such suite, or its file or table is wrong.
        EnvironmentLackingError: its table is missing.
    """
    if suite in ("simulated", "cpu"):
        if table:
            raise InputError(f"the suite `{suite}` has no table", hint="omit `--table`, or use `--suite replay`")
        return [cpu_task()] if suite == "cpu" else list(simulated_tasks())
    file = read_replay_file(_declaration(suite))
    return list(replay_tasks(file, read_table(file, table or _table(suite, file.replay.table)), noise))


def suite_inputs(suite: str, table: Path | None = None) -> Inputs:
    """Return the inputs that define a suite's tasks, and those that designers read.

    Raises:
        InputError: there is no such suite.
        EnvironmentLackingError: its table is missing.
    """
    if suite in SUITES and table is None:
        return declared.SUITES[suite].inputs()
    declaration = _declaration(suite)
    name = read_replay_file(declaration).replay.table
    found = table or _table(suite, name)
    if suite not in SUITES:
        return declared.replay_inputs(declaration, found, name=name)
    known = declared.SUITES[suite].inputs()
    return dataclasses.replace(known, files={**known.files, f"{declared.DATA}{name}": declared.content_hash(found)})


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


def simulated_tasks() -> Iterator[BenchmarkTask]:
    """Yield the six scenarios, by name; other job files in the folder do not join the suite."""
    for name in declared.SIMULATED:
        problem = load_job(catalog.root() / simulated_job(name))
        yield BenchmarkTask(name=name, problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))


def _declaration(suite: str) -> Path:
    if suite == "replay":
        return catalog.find("search_spaces", NANOTRON)
    if not suite.endswith(".toml"):
        raise InputError(f"`{suite}` is not a suite", hint=f"use one of {', '.join(SUITES)}, or a search space file with `[replay]`")
    return catalog.find("search_spaces", suite if "/" in suite else f"./{suite}")


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
