"""DYNAMIX at more workers, simulated: paired runs, and figures that follow from them."""

import numpy as np
import pytest

from experiments.policies import simulated
from experiments.policies.simulated import CLUSTERS, GLOBAL_BATCH, WorkerScale, task_of, trained

pytestmark = pytest.mark.slow


def test_all_clusters_begin_with_the_same_global_batch() -> None:
    assert {task_of(workers, "goodput").local_batch * workers for workers in CLUSTERS} == {GLOBAL_BATCH}


def test_a_policy_that_never_arrives_has_no_time_and_saves_nothing() -> None:
    found = WorkerScale(workers=2, seconds={"a": (1.0, 1.0, 1.0), "b": (None, 2.0, None)}, best_static="a", best_shared="a")
    assert found.median("b") is None
    assert found.saved("b", "a") is None


def test_a_slower_policy_saves_a_negative_share() -> None:
    found = WorkerScale(workers=2, seconds={"a": (1.0, 2.0, 4.0), "b": (2.0, 4.0, 8.0)}, best_static="a", best_shared="a")
    assert found.saved("b", "a") == (-1.0, -1.0, -1.0)
    assert found.saved("a", "b") == (0.5, 0.5, 0.5)


def test_runs_that_never_arrive_count_in_what_a_policy_saves() -> None:
    seconds = {"a": (1.0, 1.0, 1.0, 1.0, 1.0), "b": (None, 0.5, 0.5, None, 1.0), "c": (None, None, None, None, 0.5)}
    found = WorkerScale(workers=2, seconds=seconds, best_static="a", best_shared="a")
    assert found.saved("b", "a")[:2] == (-np.inf, 0.0), "the runs that arrive save half in the median"
    assert found.saved("a", "b")[1:] == (0.0, 1.0) and found.saved("c", "c")[1] == 0.0 and found.saved("c", "a") is None


@pytest.fixture(scope="module")
def few(request: pytest.FixtureRequest) -> None:
    """Small clusters and two episodes, in place of the recorded ones."""
    patch = pytest.MonkeyPatch()
    patch.setattr(simulated, "CLUSTERS", (2, 4))
    patch.setattr(simulated, "EPISODES", {"ppo": 1, "paper": 1})
    request.addfinalizer(patch.undo)


def test_every_worker_of_every_run_has_a_cumulative_reward() -> None:
    found = trained(2, "paper", 2)
    assert [rewards.shape for rewards in found.rewards] == [(16,), (16,)]
    assert all(np.isfinite(rewards).all() for rewards in found.rewards)


@pytest.mark.usefixtures("few")
def test_tables_and_json_show_the_same_figures() -> None:
    pytest.importorskip("stable_baselines3", reason="PPO needs the extra `learn`")
    scales, rewards, batches = simulated.sections(2, (2, 4))
    record = simulated.to_json(2, (2, 4))
    for row in scales.rows:
        workers, name, seconds, *_ = row
        policies = record[str(workers or 0)]["policies"] if workers else policies  # noqa: F821 - of the row above
        assert seconds == simulated._seconds(policies[name])
    assert {row[0] for row in rewards.rows} == {2, 4}
    assert [row[1] for row in batches.rows] == ["first", "middle", "last"] * 2
    assert set(simulated.figures(2)) == {"rewards.svg", "batches.svg"}
