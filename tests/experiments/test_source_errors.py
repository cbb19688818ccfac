"""How the prior is judged on published runs: laws on small tables whose answers are known."""

import math

import pandas as pd
import pytest

from experiments.prior.source_errors import judge, source_errors
from experiments.prior.source_page import figures, memory_section, missed_section, speed_section
from oppa.cost.hardware import load_hardware

LIMIT = load_hardware("H100").usable_bytes
ROW = {"source": "megatron_8xh100", "task": "a", "status": "ran", "device": "H100", "gbs": 8, "seq_len": 1024, "memory_kind": "allocated"}


def predicted(*changes: dict[str, object]) -> pd.DataFrame:
    """Rows that were predicted perfectly, with changes."""
    rows = []
    for number, change in enumerate(changes, start=1):
        row = {**ROW, "step_time_s": float(number), "memory_bytes": 0.5 * LIMIT, "fits": True, **change}
        rows.append({"predicted_step_time_s": row["step_time_s"], "predicted_memory_bytes": row["memory_bytes"], **row})
    return pd.DataFrame(rows).astype({"fits": "boolean"})


def test_perfect_predictions_have_no_error() -> None:
    errors = source_errors(predicted({}, {}, {}))
    assert (errors["spearman"], errors["regret"], errors["time"], errors["memory"], errors["recall_ran"]) == (pytest.approx(1), 0, 0, 0, 1)
    assert math.isnan(errors["recall_oom"]) and math.isnan(errors["time_coverage"])


def test_the_first_pick_is_the_fastest_that_is_predicted_to_fit() -> None:
    errors = source_errors(predicted({"fits": False}, {}, {}))
    assert errors["regret"] == pytest.approx(1) and errors["failed_picks"] == 0


def test_a_first_pick_that_did_not_run_has_an_infinite_regret() -> None:
    full = {"status": "oom", "step_time_s": math.nan, "memory_bytes": math.nan, "predicted_step_time_s": 0.5}
    errors = source_errors(predicted({**full, "predicted_memory_bytes": 0.9 * LIMIT}, {}, {}))
    assert errors["regret"] == math.inf and (errors["failed_picks"], errors["picks"]) == (1, 1)
    assert errors["recall_oom"] == 0 and errors["recall_near_oom"] == 0


def test_no_pick_is_a_failed_pick() -> None:
    assert source_errors(predicted({"fits": False}, {"fits": False}))["failed_picks"] == 1


def test_batches_of_different_size_are_compared_by_token() -> None:
    errors = source_errors(predicted({"step_time_s": 3.0, "gbs": 32}, {"step_time_s": 1.0}, {"step_time_s": 2.0}))
    assert errors["regret"] == 0 and errors["spearman"] == pytest.approx(1)


def test_near_the_limit_is_measured_or_else_predicted() -> None:
    near = {"memory_bytes": 0.95 * LIMIT, "fits": False}
    unmeasured = {"memory_bytes": math.nan, "predicted_memory_bytes": 1.05 * LIMIT}
    errors = source_errors(predicted(near, unmeasured, {}))
    assert errors["near_ran"] == 2 and errors["recall_near_ran"] == 0.5


def test_what_nvidia_smi_measured_is_compared_with_the_whole_memory() -> None:
    assert source_errors(predicted({"memory_kind": "device", "memory_bytes": 0.95 * LIMIT}, {}))["near_ran"] == 0
    assert source_errors(predicted({"memory_kind": "device", "memory_bytes": 1.1 * LIMIT}, {}))["near_ran"] == 1


def test_coverage_is_the_share_within_the_interval() -> None:
    rows = predicted({}, {}, {}, {}).assign(predicted_step_time_low_s=0.0, predicted_step_time_high_s=3.5)
    assert source_errors(rows)["time_coverage"] == 0.75


def test_unknown_models_are_only_ranked() -> None:
    errors = source_errors(predicted({}, {}, {}).assign(source="ccl_search"))
    assert errors["spearman"] == pytest.approx(1) and math.isnan(errors["time"]) and math.isnan(errors["regret"])


def test_missed_targets_are_listed_and_the_tables_show_every_source() -> None:
    rows = pd.concat([predicted({}, {}, {}), predicted({}, {}, {}).assign(source="korthikanti", predicted_step_time_s=9.0)])
    trials = {"time_before_trials": 0.02, "time_after_trials": 0.01, "time_common_factor": 0.01, "coverage_after_trials": 0.9}
    errors = judge(rows).assign(**trials)
    missed = missed_section(errors)
    assert [row[:2] for row in missed.rows] == [("korthikanti", "error of step time")]
    assert [row[0] for section in (speed_section, memory_section) for row in section(errors, title="", by="").rows] == [*errors.index] * 2
    assert figures(errors)["megatron_8xh100"]["recall_oom"] is None
