"""A fit to published runs finds the coefficients of several sources and devices."""

import pandas as pd
import pytest
import torch

from experiments.prior.source_fits import SourceFit, fit_rows, fit_sources, predict_with
from oppa.cost.coefficients import load_beliefs
from oppa.cost.prediction import COLUMNS, predict_rows
from tests.cost.conftest import rows_of

LAYOUTS = [
    {"dp": dp, "tp": tp, "pp": 1, "mbs": mbs, "device": device}
    for dp in (1, 8)
    for tp in (1, 8)
    for mbs in (4, 8, 16)
    for device in ("H100", "A100-80GB")
]
ILLEGAL = {"dp": 8, "tp": 1, "pp": 64}


def shipped() -> SourceFit:
    """The medians of `priors/` as a fit."""
    return SourceFit(
        time=torch.zeros(len(load_beliefs("step_time")), dtype=torch.float64),
        memory=torch.zeros(len(load_beliefs("memory")), dtype=torch.float64),
    )


def measured(truth: SourceFit) -> pd.DataFrame:
    """Runs on two devices whose times and memory are those of some coefficients."""
    predicted = predict_with(rows_of(*LAYOUTS), truth)
    return rows_of(*LAYOUTS).assign(
        source="nanotron",
        status="ran",
        step_time_s=predicted["predicted_step_time_s"],
        memory_bytes=predicted["predicted_memory_bytes"].astype(float),
    )


def test_the_shipped_medians_predict_as_predict_rows_does() -> None:
    rows = rows_of(*LAYOUTS, ILLEGAL)
    theirs, ours = predict_rows(rows)[list(COLUMNS)], predict_with(rows, shipped())[list(COLUMNS)]
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert ours.iloc[-1].isna().all()


@pytest.mark.slow
def test_a_fit_moves_the_medians_of_all_devices_by_as_many_spreads() -> None:
    place = torch.zeros(len(load_beliefs("step_time")), dtype=torch.float64)
    place[list(load_beliefs("step_time")).index("matmul_efficiency")] = -1.5
    found = fit_rows(measured(SourceFit(time=place, memory=shipped().memory)))
    moved = dict(zip(load_beliefs("step_time"), found.time.tolist(), strict=True))
    assert moved["matmul_efficiency"] == pytest.approx(-1.5, abs=0.4)
    assert found.memory.abs().max() < 0.05


def test_what_is_not_measured_keeps_its_medians() -> None:
    runs = measured(shipped()).assign(memory_bytes=float("nan"))
    assert not fit_rows(runs).memory.any()


@pytest.mark.parametrize("source", ["aleph_alpha_8k", "ccl_search", "fms_a100_lora"])
def test_no_fit_uses_the_sources_of_the_evaluation(source: str) -> None:
    with pytest.raises(ValueError, match=source):
        fit_sources(measured(shipped()), ("nanotron", source))
