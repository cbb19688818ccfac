"""A row of a table is predicted alike in any company and order, and as the same configuration of a job."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppa.cost.beliefs import beliefs_of_job, framework_of
from oppa.cost.facts import workload_of
from oppa.cost.prediction import COLUMNS, predict, predict_rows
from oppa.cost.rows import FUSED, broken_rules, check_rows
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


@pytest.mark.slow
@law
@given(st.lists(CHANGE, min_size=1, max_size=4))
def test_together_or_one_by_one_is_the_same(changes) -> None:
    rows = rows_of(*changes)
    assert same(predict_rows(rows), pd.concat([predict_rows(rows.iloc[[n]]) for n in range(len(rows))]))


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"gpus": 63}, "dp * cp * tp * pp = gpus"),
        ({"gbs": 500}, "gbs a multiple of dp * mbs"),
        ({"pp": 64, "gpus": 8 * 4 * 64}, "pp * model_chunks <= layers"),
        ({"pp": 8, "model_chunks": 8, "gpus": 256}, "pp * model_chunks <= layers"),
        ({"cp": 3, "gpus": 192}, "seq_len a multiple of cp"),
        ({"hidden": 4100}, "hidden a multiple of heads, unless head_dim is stated"),
        ({"kv_heads": 64}, "heads a multiple of kv_heads"),
        ({"heads": 34, "head_dim": 128, "kv_heads": 2}, "heads a multiple of tp"),
        ({"heads": 36, "head_dim": 128, "kv_heads": 6}, "kv_heads a multiple or a divisor of tp"),
        (
            {"framework": "megatron", "cp": 2, "gpus": 128, "cp_mode": "a2a", "kv_heads": 4},
            "kv_heads a multiple of tp * cp under Megatron-LM's all-to-all",
        ),
        ({"experts": 4, "experts_per_token": 8}, "experts_per_token <= experts"),
        ({"qk_rope_head_dim": 128}, "qk_rope_head_dim < head_dim"),
        ({"experts": 4, "dense_layers": 100}, "dense_layers <= layers"),
        ({"sliding_window": 512, "full_attention_layers": 100}, "full_attention_layers <= layers"),
        ({"experts": 6, "ep": 4}, "experts a multiple of ep"),
        ({"etp": 64}, "dp * cp * tp a multiple of ep * etp"),
        ({"experts": 4, "etp": 3}, "dp * cp * tp a multiple of ep * etp"),
        ({"shard": 3}, "dp a multiple of shard"),
        ({"hpz": 3}, "dp a multiple of hpz"),
    ],
)
def test_what_no_framework_can_run_has_no_prediction(change, rule) -> None:
    rows = pd.DataFrame([{**ROW, **change}])
    assert predict_rows(rows)[list(COLUMNS)].isna().all(axis=None)
    assert [name for name, broken in broken_rules(check_rows(rows)).items() if broken[0]] == [rule]


def test_megatron_copies_keys_and_values_where_there_are_more_ranks() -> None:
    assert predict_rows(rows_of({"kv_heads": 2, "tp": 8}, {"kv_heads": 1, "tp": 4}))["fits"].notna().all()


def test_dimensions_of_experts_mean_nothing_without_experts() -> None:
    assert same(predict_rows(rows_of({"expert_ffn": 512, "shared_expert_ffn": 512, "dense_layers": 2})), predict_rows(rows_of({})))


def test_capitals_and_spaces_mean_nothing() -> None:
    words = {"framework": "fsdp", "precision": "bf16", "recompute": "full", "cp_mode": "all-gather", "device": "H100", "gated": "true"}
    rows = [{name: write(word) for name, word in words.items()} for write in (str, str.upper, " {} ".format)]
    plain, capitals, spaces = (predict_rows(rows_of(row)) for row in rows)
    assert same(plain, capitals) and same(plain, spaces)


@pytest.mark.parametrize(
    ("column", "value", "hint"),
    [("device", "A100", "name one of `A100-40GB`, `A100-80GB`"), ("cp_mode", "A2A+P2P", "no exchange in two levels")],
)
def test_a_word_without_one_meaning_is_explained(column, value, hint) -> None:
    with pytest.raises(InputError) as raised:
        predict_rows(rows_of({column: value}))
    assert hint in raised.value.hint


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


@pytest.mark.parametrize(
    ("index", "place"),
    [(["run-a"], "row `run-a`"), ([0.5], "row `0.5`"), (pd.MultiIndex.from_tuples([("a", 1)]), "row `('a', 1)`"), ([7], "line 9")],
)
def test_a_wrong_value_is_named_by_any_label_of_its_row(index, place) -> None:
    with pytest.raises(InputError) as raised:
        predict_rows(rows_of({}).set_axis(index).assign(tp="x"))
    assert raised.value.message == f"{place}: `tp = x`"


@pytest.mark.parametrize("absent", [None, np.nan])
def test_a_missing_device_is_named(absent) -> None:
    rows = rows_of({}, {}).assign(device=pd.Series(["H100", absent], dtype="object"))
    with pytest.raises(InputError, match="line 3: `device` is empty"):
        predict_rows(rows)


@pytest.mark.parametrize("name", ROW)
def test_a_missing_column_is_named(name) -> None:
    with pytest.raises(InputError, match=f"have no column `{name}`"):
        predict_rows(rows_of({}).drop(columns=name))


def test_a_column_that_would_be_there_twice_is_refused() -> None:
    with pytest.raises(InputError, match="have a column `fits` already"):
        predict_rows(rows_of({}).assign(fits=True))
    with pytest.raises(InputError, match="have two columns `dp`"):
        predict_rows(pd.concat([rows_of({}), rows_of({})[["dp"]]], axis=1))


@pytest.mark.parametrize(
    "space", ["torch", "torchtitan", "accelerate", "transformers", "lightning", "deepspeed", "megatron", "colossalai", "nanotron"]
)
def test_a_job_s_configurations_are_predicted_as_the_same_rows(framework_problem, space) -> None:
    """Both can express these cases: no pipeline, whose cut a row does not have, gradients in one bucket, and no overlap."""
    problem = framework_problem(space, model="tiny-4m")
    candidates, framework = problem.candidates(), framework_of(problem)
    plain = (candidates.column(name) == 0 for name in ("overlap_zero_comm", "overlap_zero_allgather"))
    one_bucket = (candidates.column(name) >= 25 for name in ("dp_bucket_mb", "zero_bucket_mb"))
    chosen = np.flatnonzero(np.all([candidates.column("pp") == 1, *plain, *one_bucket], axis=0))
    ours = predict(workload_of(problem, candidates), *beliefs_of_job(problem)).iloc[chosen]
    names = {"dp": "dp", "tp": "tp", "pp": "pp", "model_chunks": "model_chunks", "zero_stage": "zero", "micro_batch": "mbs", "ep": "ep"}
    columns = {theirs: candidates.column(name)[chosen] for name, theirs in {**names, "recompute": "recompute"}.items()}
    used = framework.columns(candidates)
    further = {name: values[chosen] for name, values in used.items() if name in FUSED or (values != framework.usual(name)).any()}
    model = {name: getattr(problem.model, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "tied")}
    rows = pd.DataFrame({"precision": "bf16", **columns, **further}).assign(**model, device="H100", gpus=16, gpus_per_node=8, gbs=64)
    theirs = predict_rows(rows.assign(framework=framework.name))
    assert len(chosen) > (50 if space == "torch" else 15)
    for name in COLUMNS[:3]:
        assert theirs[name].astype(float).to_numpy() == pytest.approx(ours[name].to_numpy())


def test_columns_that_arrow_holds_are_read_like_others() -> None:
    pytest.importorskip("pyarrow")
    rows = rows_of({}, {"dp": 3}, {"device": "T4", "tied": True})
    assert same(predict_rows(rows.convert_dtypes(dtype_backend="pyarrow")), predict_rows(rows))


@pytest.mark.parametrize(
    ("overlap", "layout"),
    [
        ("overlap_p2p", {"pp": 8, "tp": 1, "dp": 8, "zero": 0}),
        ("overlap_zero_comm", {"pp": 1, "tp": 1, "dp": 64, "zero": 1}),
        ("overlap_zero_allgather", {"pp": 1, "tp": 1, "dp": 64, "zero": 1}),
    ],
)
def test_a_stated_overlap_saves_time(overlap, layout) -> None:
    row = {"gpus": 64, "gpus_per_node": 8, "gbs": 64, "mbs": 1, "framework": "megatron", **layout}
    exposed, hidden = predict_rows(rows_of({**row, overlap: False}, {**row, overlap: True}))["predicted_step_time_s"]
    assert hidden < exposed


def test_modules_are_joined_by_plus_signs_in_any_order() -> None:
    rows = rows_of({"recompute_modules": "moe_act + layernorm"}, {"recompute_modules": ""}, {"recompute_modules": "mlp"})
    assert check_rows(rows)["recompute_modules"].tolist() == ["layernorm+moe_act", "core_attn", "mlp"]
    with pytest.raises(InputError, match=r"line 2: `recompute_modules = mlp\+attention`") as raised:
        check_rows(rows_of({"recompute_modules": "mlp+attention"}))
    assert "core_attn, layernorm" in raised.value.hint


def test_interleaved_stages_of_megatron_overlap_their_sends_unless_the_row_states_otherwise() -> None:
    rows = rows_of(*({"framework": name, "model_chunks": chunks} for name in ("megatron", "torch") for chunks in (1, 4)))
    assert check_rows(rows)["overlap_p2p"].tolist() == [False, True, False, False]
    assert not check_rows(rows.assign(overlap_p2p=False))["overlap_p2p"].any()


@pytest.mark.parametrize(("device", "lacks"), [("A100-80GB", True), ("H100", False)])
def test_a_device_without_8_bit_products_is_warned_of_once(device, lacks, caplog) -> None:
    check_rows(rows_of(*({"device": device, "precision": precision} for precision in ("fp8", "mxfp8", "bf16"))))
    said = "`A100-80GB` has no 8-bit matrix products: its rows in 8 bits are predicted at the rate of 16"
    assert [record.getMessage() for record in caplog.records] == ([said] if lacks else [])


@pytest.mark.parametrize("device", ["V100-32GB", "T4"])
def test_bf16_has_the_rate_of_fp32_on_a_device_without_its_products(device, caplog) -> None:
    fp16, bf16 = predict_rows(rows_of(*({"device": device, "precision": precision} for precision in ("fp16", "bf16"))))[COLUMNS[0]]
    assert bf16 > 3 * fp16
    said = f"`{device}` has no bf16 matrix products: its rows in bf16 are predicted at the rate of fp32"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_format_of_frozen_weights_where_all_train_is_warned_of_once(caplog) -> None:
    trained = [("4-bit", ""), ("4-bit", "all"), ("4-bit", "lora"), ("16-bit", "")]
    check_rows(rows_of(*({"weights": weights, "trained": share} for weights, share in trained)))
    (said,) = caplog.messages
    assert "`weights = 4-bit` has no effect" in said and "`trained = lora`" in said


@pytest.mark.parametrize(("column", "meant"), [("precsion", "precision"), ("experts_count", ""), ("overlap_p2p", ""), ("notes", "")])
def test_a_column_that_nearly_has_the_name_of_another_is_warned_of(column, meant, caplog) -> None:
    check_rows(rows_of({column: "0"}))
    said = f"the column `{column}` is not read; rename it if it means `{meant}`"
    assert [record.getMessage() for record in caplog.records] == ([said] if meant else [])
