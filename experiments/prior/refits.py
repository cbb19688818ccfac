"""Refit the prior's coefficients to other sources, or to a task's first trials, and predict with them what was left out."""

import functools
from collections.abc import Callable

import pandas as pd

from experiments.lib.prediction_error import error
from experiments.prior.source_fits import SourceFit, fit_rows, fit_sources, predict_with
from experiments.published import FITTED, RAN, SOURCES, all_rows, others_of

TRIALS = 3
FEWEST_RUNS = 2 * TRIALS
"""Runs of a task that is refitted."""


@functools.cache
def left_out_fit(source: str) -> SourceFit:
    """Return the fit to all sources that may be fitted, without one and those of its origin."""
    return _fit_of(others_of(source))


@functools.cache
def own_fit(source: str) -> SourceFit:
    """Return the fit to one source alone, in which each run counts fully."""
    rows = _rows()
    return fit_rows(rows[rows["source"] == source])


def common_fit() -> SourceFit:
    """Return the fit to all sources that may be fitted."""
    return _fit_of(FITTED)


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows with predictions from coefficients that are fitted to other sources alone.

    Those of the frameworks' files do not count, because the source itself may have given them; the facts of the files do.
    """
    return pd.concat([predict_with(group, left_out_fit(str(source)), own=False) for source, group in rows.groupby("source", sort=False)])


def after_trials(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return `source`, `framework`, `time` and `memory` per task: median errors after a refit to its first trials, over its other runs.

    The first trials are the task's fastest runs by prediction among those predicted to fit; further ones follow if too few are.
    Tasks with fewer than FEWEST_RUNS runs are left out.
    """
    ran = predicted[predicted["status"].eq(RAN) & predicted["predicted_step_time_s"].notna()]
    tasks = [group for _, group in ran[known_models(ran)].groupby("task") if len(group) >= FEWEST_RUNS]
    return pd.DataFrame([_refitted(task) for task in tasks])


def known_models(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows whose model is known."""
    return rows["source"].map({name: source.known_model for name, source in SOURCES.items()})


def _refitted(task: pd.DataFrame) -> dict[str, object]:
    tokens = task["gbs"] * task["seq_len"]
    order = task.assign(refused=~task["fits"].eq(True), pace=task["predicted_step_time_s"] / tokens).sort_values(["refused", "pace"]).index
    asked = task.drop(columns=[name for name in task if str(name).startswith("predicted_") or name in ("fits", "probability_fits")])
    rest = predict_with(asked.loc[order[TRIALS:]], fit_rows(asked.loc[order[:TRIALS]]))
    return {
        "source": task["source"].iloc[0],
        "framework": task["framework"].iloc[0],
        "time": error(rest["predicted_step_time_s"], rest["step_time_s"]).median(),
        "memory": error(rest["predicted_memory_bytes"].astype(float), rest["memory_bytes"]).median(),
    }


@functools.cache
def _fit_of(sources: tuple[str, ...]) -> SourceFit:
    return fit_sources(_rows(), sources)


_rows: Callable[[], pd.DataFrame] = functools.cache(all_rows)
