"""A program reports numbers of any type, and those that JSON cannot state."""

import json

import numpy as np
import pytest
import torch
from oppa_client import ContractError, open_run, run_files

from tests.own_trainer.folders import attempt, ranks, reported


def test_numbers_that_json_cannot_state_are_left_out(tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    run.step(samples=8, loss=float("nan"), noise={"noise_scale": float("inf"), "health": "no_signal"}, learning_rate=float("inf"))
    (line,) = reported(tmp_path)
    assert line["loss"] is None and line["learning_rate"] is None and line["noise"] == {"noise_scale": None, "health": "no_signal"}


@pytest.mark.parametrize(
    ("given", "counts"), [(8, True), (8.0, True), (8.5, False), (-8, False), ("8", False), (float("nan"), False), (None, False)]
)
def test_samples_are_whole_numbers_of_whatever_type(given, counts, tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    if counts:
        run.step(samples=given)
        assert reported(tmp_path)[-1]["samples"] == 8
    else:
        with pytest.raises(ContractError, match="state a whole number from 0 on"):
            run.step(samples=given)


@pytest.mark.parametrize("of", [int, torch.tensor, np.int64], ids=["int", "tensor", "numpy"])
def test_all_numbers_of_a_step_may_be_tensors_and_numpy_numbers(of, tmp_path):
    attempt(tmp_path)
    (run,) = ranks(tmp_path, 1)
    run.step(samples=of(8), tokens=of(64), memory_bytes=of(5), skipped=of(1) == 1, loss=of(2), learning_rate=of(1))
    (line,) = reported(tmp_path)
    assert [line[name] for name in ("samples", "tokens", "memory_bytes", "skipped", "loss", "learning_rate")] == [8, 64, 5, True, 2.0, 1.0]
    with pytest.raises(ContractError, match=r"tokens=8.5"):
        run.step(samples=8, tokens=8.5)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_diverges_in_a_trial_is_reported(loss, tmp_path, monkeypatch):
    """If the job has no seed, only such a loss reveals a winner that learns otherwise."""
    attempt(tmp_path)
    (tmp_path / run_files.ATTEMPT).unlink()
    monkeypatch.setenv("OPPA_TRIAL", str(tmp_path))
    open_run().step(samples=8, loss=loss)
    (line,) = (tmp_path / run_files.MEASUREMENTS).read_text().splitlines()
    assert repr(json.loads(line)["loss"]) == repr(loss)


def test_a_rank_that_counts_its_own_samples_alone_is_told_to_count_those_of_all(tmp_path):
    attempt(tmp_path)
    first, second = ranks(tmp_path, 2)
    first.step(samples=8)
    second.step(samples=4)
    first.step(samples=8)
    with pytest.raises(ContractError, match="rank 1 counted 4 samples in step 0, but rank 0 counted 8: state those of all ranks"):
        second.step(samples=4)
