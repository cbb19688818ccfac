"""The surrogate learns from the first trials of a task, and is evaluated on the remaining runs."""

import pandas as pd
import pytest

from experiments.prior.first_trials import FEWEST_RUNS, TRIALS, common_factor_error, encoded, trial_errors
from oppa.cost.prediction import predict_rows
from tests.cost.conftest import rows_of

LAYOUTS: list[dict[str, object]] = [
    {"dp": dp, "tp": tp, "pp": 1, "mbs": mbs, "device": "H100"} for dp in (1, 8) for tp in (1, 8) for mbs in (4, 8, 16)
]


def task(factor: float) -> pd.DataFrame:
    """Return the predicted runs of a task that take longer than predicted by a factor."""
    predicted = predict_rows(rows_of(*LAYOUTS).assign(framework="nanotron"))
    measured = {
        "step_time_s": factor * predicted["predicted_step_time_s"],
        "memory_bytes": predicted["predicted_memory_bytes"].astype(float),
    }
    return predicted.assign(source="nanotron", task="a task", status="ran", **measured)


def test_a_factor_that_all_runs_share_is_learned() -> None:
    (errors,) = trial_errors(task(1.25)).to_dict("records")
    assert errors["time_before_trials"] == pytest.approx(0.2)
    assert errors["time_after_trials"] < 0.75 * errors["time_before_trials"] and errors["coverage_after_trials"] == 1
    assert errors["memory_before_trials"] == pytest.approx(0) and errors["memory_after_trials"] < 0.02


def test_the_trials_themselves_are_not_evaluated() -> None:
    runs = task(1.0)
    fits = runs["fits"].eq(True)
    first = runs.assign(refused=~fits, pace=runs["predicted_step_time_s"] / (runs["gbs"] * runs["seq_len"]))
    trials = first.sort_values(["refused", "pace"], kind="stable").index[:TRIALS]
    runs.loc[~runs.index.isin(trials), "step_time_s"] *= 1.25
    assert trial_errors(runs)["time_before_trials"].item() == pytest.approx(0.2)


def test_the_best_common_factor_leaves_what_runs_differ_in() -> None:
    assert trial_errors(task(1.25))["time_common_factor"].item() == pytest.approx(0)
    predicted, measured = pd.Series([1.0, 1.0, 1.0, 1.0]), pd.Series([0.5, 0.5, 1 / 3, 0.1])
    grid = [(factor / 1000 * predicted / measured - 1).abs().median() for factor in range(1, 1000)]
    assert common_factor_error(predicted, measured) == pytest.approx(min(grid), abs=2e-3)
    assert common_factor_error(predicted, measured) <= min(grid)


def test_small_tasks_and_runs_without_memory() -> None:
    assert not len(trial_errors(task(1.0).iloc[: FEWEST_RUNS - 1]))
    errors = trial_errors(task(1.0).assign(memory_bytes=float("nan")))
    assert errors["memory_after_trials"].isna().all() and errors["time_after_trials"].notna().all()


def test_sizes_are_encoded_by_their_logarithm_and_words_by_a_column_each() -> None:
    rows = pd.DataFrame({"tp": [1, 2, 8], "zero": [0, 1, 2], "recompute": ["none", "full", "full"], "pp": 1})
    assert encoded(rows).tolist() == [[0, 0, 1, 0], [pytest.approx(1 / 3), 0.5, 0, 1], [1, 1, 0, 1]]
