"""The prior against what others measured: how good it has to be, at least."""

import pytest

from experiments import published
from experiments.lib.prediction_error import error, task_table
from experiments.prior.run import all_reduce_errors
from oppa.cost.prediction import predict_rows

pytestmark = pytest.mark.usefixtures("published_data")


def test_nanotron_s_runs_are_ranked_and_their_memory_is_known() -> None:
    middle = task_table(predict_rows(published.nanotron_rows())).median(numeric_only=True)
    assert middle["spearman"] >= 0.85
    assert middle["regret"] <= 0.05
    assert middle["memory"] <= 0.15


def test_what_ran_is_predicted_to_fit() -> None:
    runs = predict_rows(published.nanotron_rows())
    assert runs["fits"][runs["status"] == published.RAN].mean() >= 0.95


def test_megatron_s_iterations_are_predicted() -> None:
    runs = predict_rows(published.recomputation_rows())
    assert error(runs["predicted_step_time_s"], runs["step_time_s"]).median() <= 0.15


def test_nccl_s_all_reduces_are_predicted() -> None:
    assert all_reduce_errors()["error"].median() <= 0.10
