"""Compute the errors of predicted step times and memory against measurements, for the prior and for the simulator.

Notation:
    Spearman    rank correlation of predicted and measured step times of a task
    regret      measured step time of the configuration with the shortest predicted step, over the shortest measured one, minus 1
    error       |predicted / measured - 1|
"""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from experiments.published import RAN
from oppa import catalog
from oppa.report.record import Section


def task_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row of errors per model and number of devices, over the runs that completed."""
    ran = runs[runs["status"] == RAN]
    return pd.DataFrame([{"model": name, "gpus": gpus, **judged(group)} for (name, gpus), group in ran.groupby(["model", "gpus"])])


def judged(task: pd.DataFrame) -> dict[str, float]:
    """Return the number of runs of a task, and the errors of their predicted step times and memory."""
    measured, predicted = task["step_time_s"], task["predicted_step_time_s"]
    return {
        "runs": len(task),
        "spearman": float(measured.corr(predicted, method="spearman")),
        "regret": float(measured.iloc[predicted.argmin()] / measured.min() - 1),
        "time": float(error(predicted, measured).median()),
        "memory": float(error(task["predicted_memory_bytes"].astype(float), task["memory_bytes"]).median()),
    }


def error(predicted: pd.Series, measured: pd.Series) -> pd.Series:
    """Return the absolute error relative to the measurement."""
    return (predicted / measured - 1).abs()


def task_section(tasks: pd.DataFrame, *, title: str, text: str) -> Section:
    """Return the table of a `task_table`, with medians over its tasks."""
    rows = [(f"{task['model']}, {task['gpus']} devices", task["runs"], *_cells(task)) for task in tasks.to_dict("records")]
    return Section(
        title=title,
        text=text,
        columns=("task", ">runs", ">Spearman", ">regret", ">error of step time", ">error of memory"),
        rows=[*rows, ("median of the tasks", "", *_cells(tasks.median(numeric_only=True).to_dict()))],
    )


def all_reduce_section(errors: pd.DataFrame, *, title: str, text: str) -> Section:
    """Return a table of `error` by `members`, and over all measurements."""
    groups = [(str(members), group["error"]) for members, group in errors.groupby("members")]
    rows = [(name, len(each), f"{each.median():.1%}", f"{each.quantile(0.9):.1%}") for name, each in [*groups, ("all", errors["error"])]]
    return Section(title=title, text=text, columns=(">devices", ">measurements", ">median error", ">90% below"), rows=rows)


SKIPPED = "SKIPPED"
"""Word that ends the title of a section whose data are missing."""


def skipped(what: str, lacking: Mapping[str, str]) -> Section:
    """Return a section that replaces all tables and lists the missing files."""
    return Section(
        title=f"The {what} against published measurements: {SKIPPED}",
        text=f"`{catalog.data_folder()}` lacks the published measurements. Add them, or name their folder in OPPA_DATA.",
        columns=("missing file", "content"),
        rows=list(lacking.items()),
    )


def _cells(row: Mapping[Hashable, Any]) -> tuple[str, ...]:
    return (f"{row['spearman']:.3f}", *(f"{row[name]:.1%}" for name in ("regret", "time", "memory")))
