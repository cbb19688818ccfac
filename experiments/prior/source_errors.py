"""Compare predictions with the published runs of every source.

Notation, for the rows of a source:
    task         rows that compete with one another; they are ranked by seconds per token
    first pick   the row of a task with the shortest predicted time among those predicted to fit, whether or not it ran
    regret       measured seconds per token of the first pick, over the least of its task, minus 1; infinite if the pick did not run
    recall       share of the runs that ran (or ran out of memory) that are predicted to fit (or not to fit)
    near         the same among rows within NEAR of the usable memory: as measured, or else as predicted. Bytes that nvidia-smi
                 measured are compared with the whole memory.
    coverage     share of measured values within the predicted 90% interval
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.lib.prediction_error import error
from experiments.published import DEVICE, OUT_OF_MEMORY, RAN, SOURCES
from oppa.cost.hardware import load_hardware
from oppa.problem.cluster import USABLE_SHARE

NEAR = 0.1
FEWEST_RANKED = 3
"""Runs that a task needs to be ranked."""
TIME_INTERVAL = ("predicted_step_time_low_s", "predicted_step_time_high_s")
PROBABILITY = "probability_fits"
MEMORY_INTERVAL = ("predicted_memory_low_bytes", "predicted_memory_high_bytes")


def judge(predicted: pd.DataFrame, by: str = "source") -> pd.DataFrame:
    """Return a row of `source_errors` for each source, or each value of another column, of the output of `predict_rows`."""
    return pd.DataFrame({name: source_errors(rows) for name, rows in predicted.groupby(by, sort=False)}).T.infer_objects()


def source_errors(rows: pd.DataFrame) -> Mapping[str, float]:
    """Return the counts and errors of one source; a figure that its rows cannot give is NaN.

    A source of unknown models has only counts and ranks.
    """
    has_run, has_not_fit, near = rows["status"] == RAN, rows["status"] == OUT_OF_MEMORY, _near_limit(rows)
    ran, full, near_ran, near_full = rows[has_run], rows[has_not_fit], rows[has_run & near], rows[has_not_fit & near]
    tasks = task_errors(rows)
    ranks = {
        "ran": len(ran),
        "oom": len(full),
        "failed": len(rows) - len(ran) - len(full),
        "predicted": int(ran["predicted_step_time_s"].notna().sum()),
        "tasks": int(tasks["spearman"].notna().sum()),
        "spearman": tasks["spearman"].median(),
    }
    errors = {
        "regret": tasks["regret"].median(),
        "worst_regret": tasks["regret"].max(),
        "picks": int(tasks["regret"].notna().sum()),
        "failed_picks": int(np.isinf(tasks["regret"]).sum()),
        "time": error(ran["predicted_step_time_s"], ran["step_time_s"]).median(),
        "time_bias": (ran["predicted_step_time_s"] / ran["step_time_s"]).median(),
        "memory": error(ran["predicted_memory_bytes"].astype(float), ran["memory_bytes"]).median(),
        "memory_bias": (ran["predicted_memory_bytes"].astype(float) / ran["memory_bytes"]).median(),
        "recall_ran": _share(ran["fits"].eq(True)),
        "recall_oom": _share(full["fits"].eq(False)),
        "near_ran": len(near_ran),
        "recall_near_ran": _share(near_ran["fits"].eq(True)),
        "near_oom": len(near_full),
        "recall_near_oom": _share(near_full["fits"].eq(False)),
        "probability_ran": _probability(ran),
        "probability_oom": _probability(full),
        "time_coverage": _coverage(ran, "step_time_s", TIME_INTERVAL),
        "memory_coverage": _coverage(ran, "memory_bytes", MEMORY_INTERVAL),
    }
    known = all(SOURCES[name].known_model for name in rows["source"].unique())
    return ranks | (errors if known else dict.fromkeys(errors, math.nan))


def task_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `spearman` and `regret` of each task; NaN for a task that has too few runs."""
    tokens = rows["gbs"] * rows["seq_len"]
    timed = rows.assign(measured=rows["step_time_s"] / tokens, predicted=rows["predicted_step_time_s"] / tokens)
    return pd.DataFrame({name: {"spearman": _rank(task), "regret": _regret(task)} for name, task in timed.groupby("task")}).T


def _rank(task: pd.DataFrame) -> float:
    ran = task[(task["status"] == RAN) & task["predicted"].notna()]
    if len(ran) < FEWEST_RANKED or ran["predicted"].nunique() == 1 or ran["measured"].nunique() == 1:
        return math.nan
    return float(ran["measured"].corr(ran["predicted"], method="spearman"))


def _regret(task: pd.DataFrame) -> float:
    ran = task["status"] == RAN
    if len(task) == 1 or not ran.any():
        return math.nan
    fitting = task[task["fits"].eq(True)]
    if not len(fitting):
        return math.inf
    pick = fitting.iloc[fitting["predicted"].argmin()]
    return float(pick["measured"] / task["measured"][ran].min() - 1) if pick["status"] == RAN else math.inf


def _near_limit(rows: pd.DataFrame) -> pd.Series:
    usable = rows["device"].map({name: load_hardware(name).usable_bytes for name in rows["device"].unique()})
    on_device = rows["memory_kind"].eq(DEVICE) & rows["memory_bytes"].notna()
    limits = usable.where(~on_device, usable / USABLE_SHARE)
    return (rows["memory_bytes"].fillna(rows["predicted_memory_bytes"].astype(float)) / limits - 1).abs() <= NEAR


def _probability(rows: pd.DataFrame) -> float:
    """Return the mean predicted probability of fitting."""
    return float(rows[PROBABILITY].astype(float).mean()) if PROBABILITY in rows else math.nan


def _share(flags: pd.Series) -> float:
    return float(flags.mean()) if len(flags) else math.nan


def _coverage(ran: pd.DataFrame, measured: str, interval: tuple[str, str]) -> float:
    low, high = interval
    if low not in ran or high not in ran:
        return math.nan
    known = ran[ran[measured].notna() & ran[low].notna()]
    return _share(known[measured].between(known[low].astype(float), known[high].astype(float)))
