"""The readers of published runs: what every source holds, in which units, and how plausible its runs are."""

import numpy as np
import pandas as pd
import pytest

from experiments import published
from oppa import catalog
from oppa.cost.hardware import load_hardware
from oppa.cost.rows import REQUIRED, check_rows
from oppa.errors import EnvironmentLackingError
from oppa.problem.cluster import USABLE_SHARE

COUNTS = {
    "nanotron": (1003, 0, 608),
    "megatron_8xh100": (62, 4, 0),
    "korthikanti": (8, 0, 0),
    "llm_foundry_a100": (312, 0, 0),
    "bloom": (98, 6, 0),
    "fms_a100": (16, 16, 0),
    "fms_a100_lora": (12, 12, 0),
    "fms_a100_4bit": (57, 11, 0),
    "fms_a100_moe": (29, 0, 0),
    "aleph_alpha_8k": (55, 107, 0),
    "ccl_search": (68, 1, 40),
}
"""Rows that ran, were out of memory, and failed."""
WORDS = {
    "framework": {"", "megatron", "fsdp", "deepspeed", "nanotron"},
    "cp_mode": {"", "ring", "all-to-all", "all-gather"},
    "attention": {"flash", "plain"},
    "status": {"ran", "oom", "failed"},
    "trained": {"all", "lora"},
    "memory_kind": {"", "allocated", "device"},
}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    if lacking := published.missing():
        pytest.skip(f"NOT TESTED: the readers of published runs. `{catalog.data_folder()}` lacks {', '.join(lacking)} (set OPPA_DATA)")
    return published.all_rows()


def model_flops(rows: pd.DataFrame) -> pd.Series:
    """Six operations for each weight and token, and those of causal attention."""
    kv_width = rows["hidden"] / rows["heads"] * rows["kv_heads"]
    attention = 2 * rows["hidden"] * (rows["hidden"] + kv_width)
    active = (rows["experts_per_token"] * rows["expert_ffn"] + rows["shared_expert_ffn"]).where(rows["experts"] > 1, rows["ffn"])
    feed_forward = np.where(rows["gated"].astype(bool), 3, 2) * rows["hidden"] * active
    weights = rows["layers"] * (attention + feed_forward) + rows["vocab"] * rows["hidden"]
    tokens = rows["gbs"] * rows["seq_len"]
    return tokens * (6 * weights + 6 * rows["layers"] * rows["hidden"] * rows["seq_len"])


@pytest.fixture(scope="module")
def utilisation(rows) -> pd.Series:
    peaks = {name: load_hardware(name).matmul_peak("bf16") for name in rows["device"].unique()}
    return model_flops(rows) / (rows["step_time_s"] * rows["gpus"] * rows["device"].map(peaks))


def test_every_source_has_its_rows(rows) -> None:
    counted = rows.groupby(["source", "status"]).size().unstack(fill_value=0)
    assert {name: tuple(counted.loc[name].get(status, 0) for status in ("ran", "oom", "failed")) for name in counted.index} == COUNTS
    assert set(COUNTS) == set(published.SOURCES)


def test_every_row_is_one_for_the_cost_model(rows) -> None:
    assert set(REQUIRED) <= set(rows) and len(check_rows(rows)) == len(rows)
    assert not rows[[*REQUIRED, "source", "task"]].isna().any().any()
    assert {name: set(rows[name]) - known for name, known in WORDS.items()} == {name: set() for name in WORDS}


def test_degrees_multiply_to_the_devices_of_all_that_ran(rows) -> None:
    ran = rows[rows["status"] == published.RAN]
    assert (ran["dp"] * ran["tp"] * ran["pp"] * ran["cp"] == ran["gpus"]).all()
    assert (ran["gbs"] % (ran["dp"] * ran["mbs"]) == 0).all()
    assert (ran["dp"] * ran["cp"] * ran["tp"] % (ran["ep"] * ran["etp"]) == 0).all()
    assert (ran["pp"] * ran["model_chunks"] <= ran["layers"]).all()


def test_what_ran_has_a_time_and_nothing_else_has(rows) -> None:
    ran = rows["status"] == published.RAN
    timed = ran & (rows["source"] != "ccl_search")  # some of its successes have no time
    assert (rows["step_time_s"][timed] > 0).all()
    assert rows["step_time_s"][~ran].isna().all() and rows["memory_bytes"][~ran].isna().all()


def test_memory_is_in_bytes_and_within_the_device(rows) -> None:
    whole = rows["device"].map({name: load_hardware(name).usable_bytes / USABLE_SHARE for name in rows["device"].unique()})
    share = (rows["memory_bytes"] / whole).dropna()
    assert share.between(0.005, 1.0).all()
    assert (rows["memory_kind"] != "")[share.index].all()


def test_utilisation_is_plausible(rows, utilisation) -> None:
    known = utilisation[rows["source"] != "ccl_search"]  # its models are unknown
    middle = known.groupby(rows["source"]).median()
    assert middle.between(0.02, 0.75).all(), middle.to_dict()
    assert known.max() <= 0.75
    others = known[~rows["source"].isin(["nanotron", "fms_a100_moe"])]  # pipelines of one micro-batch; loops over experts
    assert others.min() >= 0.02


def test_llm_foundry_s_own_utilisation_is_ours_without_the_causal_half(rows, utilisation) -> None:
    runs = rows[rows["source"] == "llm_foundry_a100"]
    short = runs[runs["seq_len"] <= 2048]
    assert (utilisation[short.index] / (short["mfu_pct"] / 100)).between(0.8, 1.01).all()


def test_virtual_stages_are_chunks_of_the_stated_layers(rows) -> None:
    chunks = rows[rows["source"] == "megatron_8xh100"].set_index("row")["model_chunks"]
    assert chunks[["401-R7", "401-R8", "401-R11", "401-R13", "401-R15"]].tolist() == [3, 1, 9, 3, 1]


def test_a_row_per_weight_is_what_the_models_have(rows) -> None:
    runs = rows[rows["source"] == "llm_foundry_a100"]
    blocks = 12 * runs["layers"] * runs["hidden"] ** 2
    assert ((blocks + (runs["vocab"] + runs["seq_len"]) * runs["hidden"]) / runs["params"]).between(0.98, 1.02).all()


def test_sources_of_one_origin_are_left_out_together() -> None:
    assert not {"fms_a100", "fms_a100_moe"} & set(published.others_of("fms_a100_lora"))
    assert set(published.others_of("nanotron")) == set(published.FITTED) - {"nanotron"}


def test_no_fit_uses_the_runs_of_the_evaluation() -> None:
    assert not {"aleph_alpha_8k", "ccl_search"} & set(published.FITTED)


def test_a_missing_file_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OPPA_DATA", str(tmp_path))
    with pytest.raises(EnvironmentLackingError, match=r"megatron_8xh100.csv` does not exist"):
        published.megatron_rows()
