"""The simulator against what others measured: how near it has to be, at least."""

import pytest

from experiments.simulator import run as bench

pytestmark = pytest.mark.usefixtures("published_runs")


@pytest.fixture(scope="module")
def runs():
    return bench.simulated_runs()


@pytest.mark.slow
def test_nanotron_s_runs_are_ranked_and_their_time_and_memory_are_known(runs):
    middle = bench.task_table(runs).median(numeric_only=True)
    assert middle["spearman"] >= 0.8
    assert middle["regret"] <= 0.05
    assert middle["time"] <= 0.2
    assert middle["memory"] <= 0.2


@pytest.mark.slow
def test_what_ran_fits(runs):
    assert runs["fits"][runs["status"] == "ran"].mean() >= 0.95


@pytest.mark.slow
def test_megatron_s_iterations_are_simulated():
    assert (bench.recomputation()["ratio"] - 1).abs().max() <= 0.15


def test_nccl_s_all_reduces_are_simulated():
    assert bench.all_reduce_errors()["error"].median() <= 0.05
