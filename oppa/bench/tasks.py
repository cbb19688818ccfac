"""Recorded tasks: the CPU job that was measured whole (results/cpu-exhaustive), and nanotron's runs on H100 (OPPA_DATA)."""

import math
import statistics
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oppa import catalog
from oppa.bench.published import nanotron_rows
from oppa.bench.replay import Recorded, Task
from oppa.problem.candidates import Candidates
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import PARAMETERS, Configuration
from oppa.problem.job import load_job
from oppa.problem.model import Model
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space_file import read_space
from oppa.problem.training import Limits, Training
from oppa.study.records import SEARCH

STEP_NOISE = TRIAL_NOISE = 0.03
"""Of the published runs, which say nothing of their noise: assumed."""


def cpu_task(root: Path) -> Task:
    """`examples/cpu.toml` with what its 70 configurations measured, and the noise of the steps and of the repeats that were recorded."""
    problem = load_job(root / "examples" / "cpu.toml")
    candidates = problem.candidates()
    table = pd.read_csv(root / "results" / "cpu-exhaustive" / "trials.csv")
    recorded = {_candidate(row, candidates): _recorded(row) for row in table[table.purpose == SEARCH].to_dict("records")}
    rates = table[table.outcome == "completed"].groupby(list(PARAMETERS)).steps_per_s
    spreads = [float(np.log(group).std()) for _, group in rates if len(group) > 2]
    return Task(name="cpu", problem=problem, candidates=candidates, recorded=recorded, trial_noise=statistics.mean(spreads))


def nanotron_tasks() -> Iterator[Task]:
    """One task per model and number of nodes; raises EnvironmentLackingError without the data."""
    for (name, nodes), rows in nanotron_rows().groupby(["model", "nodes"]):
        yield _nanotron_task(f"{name}-{nodes}", rows)


def _nanotron_task(name: str, rows: pd.DataFrame) -> Task:
    first = rows.iloc[0]
    dimensions: dict[str, Any] = {key: int(first[key]) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")}
    model, training = Model(**dimensions, tied=bool(first.tied)), Training(precision="bf16")
    cluster = Cluster(hosts=int(first.nodes), devices_per_host=8, device="H100", memory_limit_bytes=85_028_896_768)
    facts = facts_of(model, 256, cluster, training)
    space = read_space((catalog.root() / "search_spaces" / "nanotron.toml").read_text(), name="nanotron", facts=facts)
    problem = Problem(
        name=name,
        model=model,
        global_batch=256,
        cluster=cluster,
        runner=Path("nanotron"),
        training=training,
        space=space,
        limits=Limits(q_max=30),
    )
    candidates = problem.candidates()
    keys = {"dp": "dp", "tp": "tp", "pp": "pp", "micro_batch": "mbs", "zero_stage": "zero"}
    numbered = pd.DataFrame({column: candidates.column(name) for name, column in keys.items()}).reset_index(names="candidate")
    legal = rows.merge(numbered, on=list(keys.values()))
    recorded = {int(row["candidate"]): _published(row) for row in legal.to_dict("records")}
    return Task(name=name, problem=problem, candidates=candidates, recorded=recorded, trial_noise=TRIAL_NOISE)


def _published(row: Mapping[Hashable, Any]) -> Recorded:
    if row["status"] != "ok":
        return Recorded(outcome="failed")
    steps_per_s = row["tok_s"] / (256 * 4096)
    return Recorded(outcome="completed", steps_per_s=steps_per_s, memory_bytes=round(row["mem_gb"] * 2**30), step_noise=STEP_NOISE)


def _recorded(row: Mapping[Hashable, Any]) -> Recorded:
    if row["outcome"] != "completed":
        return Recorded(outcome=row["outcome"])
    noise = row["stddev"] / row["steps_per_s"] * math.sqrt(row["steps"] - 1)
    return Recorded(outcome="completed", steps_per_s=row["steps_per_s"], memory_bytes=int(row["memory_bytes"]), step_noise=noise)


def _candidate(row: Mapping[Hashable, Any], candidates: Candidates) -> int:
    return candidates.index_of(Configuration.from_dict({str(name): row[name] for name in PARAMETERS}))
