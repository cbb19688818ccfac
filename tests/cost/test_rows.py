"""Rows of somebody's table: predicted alike in any company and order, and as the same configurations of a job are."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.prediction import COLUMNS, predict, predict_rows
from oppa.errors import InputError
from tests.cost.conftest import ROW, rows_of

CHANGE = st.fixed_dictionaries(
    {
        "device": st.sampled_from(["A5000", "H100", "T4", "CPU", "GPU"]),
        "layers": st.sampled_from([8, 16, 32]),
        "dp": st.sampled_from([1, 2, 3, 8]),
        "tp": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "zero": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["", "fp32", "tf32", "fp16", "bf16"]),
        "tied": st.booleans(),
    }
)
law = settings(max_examples=8)


def same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return one[list(COLUMNS)].reset_index(drop=True).equals(other[list(COLUMNS)].reset_index(drop=True))


@law
@given(st.lists(CHANGE, min_size=1, max_size=4))
def test_together_or_one_by_one_is_the_same(changes) -> None:
    rows = rows_of(*changes)
    assert same(predict_rows(rows), pd.concat([predict_rows(rows.iloc[[n]]) for n in range(len(rows))]))


@law
@given(st.lists(CHANGE, min_size=2, max_size=6), st.randoms())
def test_the_order_of_rows_is_the_order_of_predictions(changes, random) -> None:
    rows, order = rows_of(*changes), list(range(len(changes)))
    random.shuffle(order)
    assert same(predict_rows(rows.iloc[order]), predict_rows(rows).iloc[order])


def test_rows_and_their_other_columns_stay_as_they_are() -> None:
    rows = rows_of({}, {"dp": 3}, {"device": "T4"}).assign(note=["007", None, "0.10"])
    predicted = predict_rows(rows)
    pd.testing.assert_frame_equal(predicted[list(rows)], rows)
    assert predicted["fits"].isna().tolist() == [False, True, False]  # 512 sequences are not a multiple of 3


@pytest.mark.parametrize("change", [{"gpus": 63}, {"gbs": 500}, {"pp": 64, "gpus": 8 * 4 * 64}, {"pp": 8, "model_chunks": 8, "gpus": 256}])
def test_what_no_framework_can_run_has_no_prediction(change) -> None:
    predicted = predict_rows(pd.DataFrame([{**ROW, **change}]))
    assert predicted[list(COLUMNS)].isna().all(axis=None)


def test_an_alias_is_predicted_as_its_device() -> None:
    rows = predict_rows(rows_of({"device": "T4"}, {"device": "Tesla T4"}))
    assert rows.loc[0, list(COLUMNS)].equals(rows.loc[1, list(COLUMNS)])


def test_text_and_numbers_mean_the_same() -> None:
    rows = rows_of({}, {"tied": True, "gated": False, "precision": "fp16"})
    assert same(predict_rows(rows.astype("str")), predict_rows(rows))


def test_no_rows_are_no_error() -> None:
    assert len(predict_rows(rows_of({}).iloc[:0])) == 0


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("layers", "many", "line 3: `layers = many`"),
        ("mbs", "1.5", "line 3: `mbs = 1.5`"),
        ("gbs", "0", "line 3: `gbs = 0`"),
        ("zero", "4", "line 3: `zero = 4`"),
        ("vocab", "1e99", "line 3: `vocab = 1e99`"),
        ("dp", "", "line 3: `dp` is empty"),
        ("tp", np.nan, "line 3: `tp` is empty"),
        ("device", "H10O", "line 3: `device = H10O`"),
        ("recompute", "some", "line 3: `recompute = some`"),
        ("tied", "maybe", "line 3: `tied = maybe`"),
        ("precision", "fp9", "line 3: `precision = fp9`"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(column, value, message) -> None:
    rows = rows_of({}, {}, {}).astype("str").assign(tied="false", precision="")
    rows[column] = pd.Series([rows[column][0], value, value], dtype="object")
    with pytest.raises(InputError) as raised:
        predict_rows(rows)
    assert raised.value.message == message and raised.value.hint


@pytest.mark.parametrize("name", ROW)
def test_a_missing_column_is_named(name) -> None:
    with pytest.raises(InputError, match=f"have no column `{name}`"):
        predict_rows(rows_of({}).drop(columns=name))


def test_a_column_that_would_be_there_twice_is_refused() -> None:
    with pytest.raises(InputError, match="have a column `fits` already"):
        predict_rows(rows_of({}).assign(fits=True))
    with pytest.raises(InputError, match="have two columns `dp`"):
        predict_rows(pd.concat([rows_of({}), rows_of({})[["dp"]]], axis=1))


def test_a_job_s_configurations_are_predicted_as_the_same_rows(framework_problem) -> None:
    """Where both can say what is meant: without a pipeline, whose cut a row does not know, and gradients in one bucket."""
    problem = framework_problem("torch", model="tiny-4m")
    candidates = problem.candidates()
    chosen = np.flatnonzero((candidates.column("pp") == 1) & (candidates.column("dp_bucket_mb") == 25))
    ours = predict(workload_of(problem, candidates), *beliefs_of_job(problem)).iloc[chosen]
    names = {"dp": "dp", "tp": "tp", "pp": "pp", "model_chunks": "model_chunks", "zero_stage": "zero", "micro_batch": "mbs"}
    columns = {theirs: candidates.column(name)[chosen] for name, theirs in {**names, "recompute": "recompute"}.items()}
    model = {name: getattr(problem.model, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "tied")}
    rows = pd.DataFrame(columns).assign(**model, device="H100", gpus=16, gpus_per_node=8, gbs=64, precision="bf16", framework="torch")
    theirs = predict_rows(rows)
    assert len(chosen) > 50
    for name in COLUMNS[:3]:
        assert theirs[name].astype(float).to_numpy() == pytest.approx(ours[name].to_numpy())


def test_columns_that_arrow_holds_are_read_like_others() -> None:
    pytest.importorskip("pyarrow")
    rows = rows_of({}, {"dp": 3}, {"device": "T4", "tied": True})
    assert same(predict_rows(rows.convert_dtypes(dtype_backend="pyarrow")), predict_rows(rows))
