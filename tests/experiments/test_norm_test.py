"""The norm test's experiment: what its page says of runs that are made up, and which runs it asks for."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import Recorder
from experiments.lib.run_trace import COLUMNS, HELD_OUT, RunTrace
from experiments.norm_test.experiment import DDP, FSDP, run
from experiments.norm_test.schemes import BATCHES, adaptive, constant, matching
from oppa import catalog
from oppa.control.registry import policy_of
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.job import load_job
from tests.control.conftest import row, table_of  # noqa: F401 - a fixture

SAMPLES = 12_800


@pytest.fixture(scope="module")
def table(table_of):  # noqa: F811
    return table_of(row(dp=4, micro_batch=1, global_batch=batch, steps_per_s=100 / batch) for batch in BATCHES)


def trace(variant: str, seed: int, batch: int, *, loss: float) -> RunTrace:
    """Batches of one size; the loss falls to `loss` at the end, and of held-out samples, which are looked at four times, to 0.1 more."""
    steps = np.arange(SAMPLES // batch)
    samples = batch * (steps + 1)
    losses = 5 - (5 - loss) * samples / SAMPLES
    looks = np.isin(samples, SAMPLES * np.arange(1, 5) // 4)
    values = {
        "step": steps,
        "samples": samples,
        "configuration": "dp4_tp1_pp1_z0_mbs1",
        "global_batch": batch,
        "loss": losses,
        "noise_scale": np.nan,
        "step_time_s": batch / 100 + 0.01,
        "pause_s": 0.0,
        "elapsed_s": np.cumsum(np.full(len(steps), batch / 100 + 0.02)),
    }
    steps = pd.DataFrame(values).astype(COLUMNS)
    steps[HELD_OUT] = np.where(looks, losses + 0.1, np.nan)
    return RunTrace(variant, seed, steps)


@pytest.fixture
def folder(tmp_path, table):
    (tmp_path / "runs").mkdir()
    table.write(tmp_path / "table")
    for seed in range(3):
        for variant, batch, loss in (
            ("norm-test-0.58", 64, 2.0),
            ("stagewise", 100, 2.2),
            ("constant-64", 64, 2.1 + 0.1 * seed),
            ("constant-128", 128, 2.5),
        ):
            trace(variant, seed, batch, loss=loss).write(tmp_path / "runs")
    (tmp_path / "runs" / "origins.json").write_text(json.dumps({"stagewise-0": {"command": "oppa train", "date": "2026-01-01"}}))
    return tmp_path


def test_held_out_losses_are_kept_with_a_run(tmp_path) -> None:
    one = trace("stagewise", 0, 64, loss=2.0)
    again = RunTrace.read(one.write(tmp_path))
    assert again.held_out["samples"].tolist() == [3200, 6400, 9600, 12_800]
    assert again.held_out["loss"].iloc[-1] == pytest.approx(2.1) and again.average_batch == 64
    assert again.held_out["clock_s"].iloc[-1] == pytest.approx(one.clock_s[-1], rel=1e-5)


def test_a_norm_test_stands_next_to_the_constant_batch_of_its_size(folder) -> None:
    record = DDP.to_json(folder, print)
    assert record["validation_loss_below_constant"] == {"norm-test-0.58": pytest.approx(0.2, abs=1e-4)}
    assert record["schemes"]["norm-test-0.58"]["steps"] == 200 and record["schemes"]["constant-128"]["average_batch"] == 128
    assert record["schemes"]["constant-128"]["validation_loss"] == pytest.approx(2.6) and record["runs"] == 12
    schemes, beside = DDP.sections(folder)
    assert [line[0] for line in schemes.rows] == ["norm-test-0.58", "stagewise", "constant-64", "constant-128"]
    (line,) = beside.rows
    assert line[1:4] == ["64", "64", "200, 200"] and line[5] == "3 of 3" and "+0.1000" in line[4]
    assert line[6] == line[4] and line[7] == "3 of 3", "a constant batch of exactly this size is on record"
    assert record["validation_loss_below_constant_of_its_size"] == {"norm-test-0.58": pytest.approx(0.2, abs=1e-4)}


def test_between_two_constant_batches_their_losses_are_interpolated(folder) -> None:
    """The loss at 100 is linear in the logarithm of the size."""
    trace("norm-test-0.8", 0, 100, loss=2.0).write(folder / "runs")
    record = DDP.to_json(folder, print)["validation_loss_below_constant_of_its_size"]
    assert record["norm-test-0.8"] == pytest.approx(0.1 + 0.4 * np.log2(100 / 64), abs=1e-4)


def test_rows_are_as_long_as_their_heads(folder) -> None:
    schemes, beside = DDP.sections(folder)
    assert all(len(row) == len(section.columns) for section in (schemes, beside) for row in section.rows)


def test_the_page_is_made_of_the_records_alone(folder) -> None:
    text = written_page(folder, DDP.page(folder)).read_text()
    assert "| norm-test-0.58" in text and DDP.page(folder)[0] == text
    for name in ("schedules", "validation", "gap"):
        assert (folder / f"{name}.svg").read_text().startswith("<")


def test_without_records_the_error_states_how_to_make_them(tmp_path) -> None:
    with pytest.raises(InputError, match="no record of a run") as caught:
        FSDP.sections(tmp_path)
    assert "oppa bench norm-test-fsdp --run" in caught.value.hint


def test_a_constant_batch_that_matches_takes_at_least_as_many_steps(table) -> None:
    assert [matching(table, average) for average in (3.0, 4.0, 63.9, 64.0, 1000.0)] == [4, 4, 56, 64, 128]


def test_every_scheme_can_be_trained(table) -> None:
    for scheme in [*adaptive(table), constant(table, 64)]:
        assert scheme.begins.global_batch in BATCHES
        policy_of(scheme.policy)(ThroughputIndex(table))
    for experiment in (DDP, FSDP):
        assert load_job(catalog.root() / "examples" / f"{experiment.job}.toml").global_batch == BATCHES[-1]


def test_each_seed_trains_every_scheme_and_the_constants_of_their_sizes(table, tmp_path, monkeypatch) -> None:
    asked = []

    def train(self, variant, seed, begins, *words):
        asked.append((variant, seed, words[-1]))
        return trace(variant, seed, 40 if variant == "norm-test-0.8" else 64, loss=2.0)

    monkeypatch.setattr(Recorder, "table", lambda self, batches: table)
    monkeypatch.setattr(Recorder, "train", train)
    run(Recorder(job=Path(), folder=tmp_path, work=tmp_path, tell=print), range(2))
    for seed in range(2):
        own = [variant for variant, at, _ in asked if at == seed]
        assert sorted(own) == sorted({*own}) and {f"constant-{size}" for size in (32, 40, 64, 128)} <= {*own} and "stagewise" in own
    assert asked[0][0] != asked[len(asked) // 2][0], "whatever drifts meets all alike"
