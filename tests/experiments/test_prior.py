"""The suites about priors: what they say without the data, and that a fit finds what is there."""

import pandas as pd
import pytest
import torch

from experiments import published
from experiments.lib.prediction_error import judged
from experiments.lib.suite_command import suite_command
from experiments.prior.calibrate import calibrate
from experiments.prior.page_errors import page_errors, page_figures
from experiments.prior.run import prior
from experiments.prior.stalls import stall_probability
from experiments.published.performance_pages import performance_pages
from experiments.registry import SUITES
from oppa.bench.fitting import fit
from oppa.cost.coefficients import load_beliefs, medians
from oppa.cost.hardware import load_hardware
from oppa.cost.prediction import predict_rows
from oppa.cost.step_time import step_time
from oppa.errors import EnvironmentLackingError
from tests.cost.conftest import work_of


@pytest.fixture
def no_data(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OPPA_DATA", str(tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("no_data")
def test_without_data_the_prior_is_skipped_loudly(tmp_path) -> None:
    skipped, pages = prior()
    assert "SKIPPED" in skipped.title and str(tmp_path) in skipped.text
    assert [name for name, _ in skipped.rows] == list(published.FILES)
    assert {row[0] for row in pages.rows} >= {"megatron_bridge", "torchtitan", "all pages"}


@pytest.mark.usefixtures("no_data")
def test_without_data_a_record_stays(tmp_path) -> None:
    record = tmp_path / "record" / "table.md"
    record.parent.mkdir()
    record.write_text("measured")
    with pytest.raises(EnvironmentLackingError, match=r"table\.md` stays"):
        suite_command("prior", SUITES["prior"])(1, record.parent)
    assert record.read_text() == "measured"


@pytest.mark.slow
def test_every_run_of_the_performance_pages_is_predicted_and_names_its_page() -> None:
    runs = predict_rows(performance_pages())
    assert runs["predicted_step_time_s"].notna().all() and runs["url"].str.startswith("https://github.com/").all()
    figures = page_figures(page_errors())
    assert sum(each["runs"] for name, each in figures.items() if not name.startswith("all pages")) == len(runs)
    assert all(0 <= each["time_covered"] <= 1 and each["low"] <= each["ratio"] <= each["high"] for each in figures.values())


def test_submissions_to_mlperf_compute_less_than_their_devices_can() -> None:
    runs = performance_pages()
    runs = runs[runs["source"] == "mlperf_training"]
    assert (
        len(runs) == 139 and runs["url"].str.fullmatch(r"https://github.com/mlcommons/training_results_v\d.\d/tree/[0-9a-f]{40}/.*").all()
    )
    layer = runs["hidden"] * (2 * runs["hidden"] * (1 + runs["kv_heads"] / runs["heads"]) + runs["ffn"] * (3 - runs["gated"].eq(False)))
    weights = runs["layers"] * layer + runs["hidden"] * runs["vocab"]
    known = {"GPT-3 175B": 175e9, "Llama 2 70B": 69e9, "Llama 3.1 405B": 405e9, "Llama 3.1 8B": 7.5e9}
    assert (weights / runs["model"].map(known) - 1).abs().max() < 0.02
    passes = runs["trained"].eq("lora").map({True: 4, False: 6})  # frozen weights have no gradients
    rate = passes * weights * runs["seq_len"] * runs["gbs"] / runs["gpus"] / runs["step_time_s"]
    peak = [load_hardware(device).matmul_peak(precision) for device, precision in zip(runs["device"], runs["precision"], strict=True)]
    assert (rate / peak).between(0.05, 0.6).all()


@pytest.mark.usefixtures("no_data")
def test_without_data_nothing_is_calibrated() -> None:
    with pytest.raises(EnvironmentLackingError, match=r"nanotron_h100.csv` does not exist"):
        calibrate()


def test_a_perfect_prediction_has_no_error() -> None:
    runs = pd.DataFrame({"step_time_s": [3.0, 1.0, 2.0], "memory_bytes": [1.0, 2.0, 4.0]})
    perfect = runs.assign(predicted_step_time_s=runs["step_time_s"], predicted_memory_bytes=runs["memory_bytes"])
    assert judged(perfect) == {"runs": 3, "spearman": pytest.approx(1), "regret": 0, "time": 0, "memory": 0}
    upside_down = perfect.assign(predicted_step_time_s=1 / runs["step_time_s"])
    assert judged(upside_down)["spearman"] == pytest.approx(-1) and judged(upside_down)["regret"] == 2


def test_a_fit_finds_the_coefficient_that_runs_tell() -> None:
    beliefs = load_beliefs("step_time")
    work = work_of(
        *({"framework": "torch", "dp": dp, "tp": tp, "pp": 1, "mbs": mbs} for dp in (1, 8) for tp in (1, 8) for mbs in (4, 8, 16))
    )
    truth = {**medians(beliefs), "matmul_efficiency": torch.tensor(0.45, dtype=torch.float64)}
    measured = pd.Series(step_time(work, truth).numpy())
    found = fit(step_time, work, measured, beliefs)
    assert found["matmul_efficiency"].item() == pytest.approx(0.45, rel=0.05)
    assert found["bubble"].item() == pytest.approx(1.0)  # no pipeline, so nothing is learned of it


def test_the_probability_of_a_slow_host_is_that_of_its_runs() -> None:
    runs = pd.DataFrame({"hosts": 2, "stalled": [True] * 19 + [False] * 81})  # 1 - 0.9^2
    assert stall_probability(runs) == pytest.approx(0.1, abs=1e-3)
