"""A policy learns online from runs whose rewards are known."""

import numpy as np
import pytest

from oppa.control.rl import online
from oppa.control.rl.episode import Episode
from oppa.control.rl.learner import cumulative
from oppa.control.rl.observation import observations
from oppa.control.rl.online import LEAST_WINDOWS, DrawingPolicy, RunLearner, cumulative_rewards
from oppa.errors import InputError
from tests.control.rl.conftest import explored, paid


@pytest.mark.slow
def test_a_step_that_pays_is_drawn_more_often(task, small, monkeypatch) -> None:
    runs = [paid(explored(task, small, 60, seed), best=3) for seed in range(10)]
    monkeypatch.setattr(online, "recorded", lambda lines, actions, reward, drawn: lines)
    learner, seen = RunLearner(small), observations(runs[0][0].state, small.actions)
    worth = [learner.update(run, list) for run in runs]
    assert 0.1 < np.mean(worth) < 0.4, "one of five steps pays, and bounds make some alike"
    before, after = (each.probabilities(seen)[:, 3] for each in (small, learner.weights))
    assert (after > before).all()
    assert learner.weights.provenance["runs"] == 10 and RunLearner(learner.weights).weights.provenance["runs"] == 10


def test_rewards_after_a_gap_are_not_those_of_the_step_before_it(task, small) -> None:
    """Windows are left out where a change was late. The others teach as those of two runs."""
    windows = explored(task, small, 20)
    early, late = windows[:8], windows[9:]
    apart = [cumulative(np.array([each.rewards for each in part])) for part in (early, late)]
    assert cumulative_rewards([*early, *late]) == pytest.approx(np.concatenate(apart))
    assert cumulative_rewards(windows) == pytest.approx(cumulative(np.array([each.rewards for each in windows])))


def test_too_short_a_run_teaches_nothing(task, small, monkeypatch) -> None:
    monkeypatch.setattr(online, "recorded", lambda lines, actions, reward, drawn: lines)
    with pytest.raises(InputError, match="is too short to learn from"):
        RunLearner(small).update(explored(task, small, LEAST_WINDOWS - 1), list)


def test_steps_are_drawn_by_their_probabilities(task, small) -> None:
    episode, drawn = Episode(task, task.hosts(0), seed=0), []
    state = episode.state
    for seed in range(200):
        after = DrawingPolicy(weights=small, seed=seed).decide(state).local_batches or state.local_batches
        drawn.append(small.actions.chosen(state.local_batches, after)[0])
    share = np.bincount(drawn, minlength=5) / len(drawn)
    assert share == pytest.approx(small.probabilities(observations(state, small.actions))[0], abs=0.12)
    same = [DrawingPolicy(weights=small, seed=1).decide(state).local_batches for _ in range(2)]
    assert same[0] == same[1]
