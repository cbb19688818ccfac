"""A policy learns on simulated runs, and is evaluated on others."""

import dataclasses

import numpy as np
import pytest

from oppa.control.decision import DecisionKind, JobState, Limit
from oppa.control.policies.proportional import ProportionalPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.registry import policy_of
from oppa.control.rl.algorithms import ALGORITHMS, learned
from oppa.control.rl.course import RUNS, WINDOWS
from oppa.control.rl.episode import UNSEEN, Episode, evaluated_run
from oppa.control.rl.evaluation import scores, sizes
from oppa.control.rl.learner import Learner, cumulative, layers_of, network
from oppa.control.rl.observation import NAMES
from oppa.control.rl.policy import ExploringPolicy, LearnedPolicy, drawn
from oppa.control.service.factory import ControllerFactory
from oppa.errors import InputError
from tests.control.rl.conftest import biased, state


def test_rewards_are_summed_up_from_the_end() -> None:
    assert cumulative(np.array([[1.0], [2.0], [4.0]]), 0.5).ravel().tolist() == [3.0, 4.0, 4.0]


def test_what_was_worth_more_becomes_more_likely() -> None:
    learner = Learner(network(3, 5), rate=0.05)
    seen = np.ones((8, 3))
    before = learner.probabilities(seen[:1])[0, 3]
    for _ in range(20):
        learner.update(seen, [3] * 8, np.ones(8))
    assert learner.probabilities(seen[:1])[0, 3] > max(0.9, before)


def test_actions_are_drawn_by_their_probabilities() -> None:
    rows = np.tile([0.1, 0.0, 0.6, 0.3, 0.0], (20_000, 1))
    counts = np.bincount(drawn(rows, np.random.default_rng(0)), minlength=5) / 20_000
    assert counts == pytest.approx(rows[0], abs=0.02)


def test_the_same_seed_is_the_same_run(task) -> None:
    first, second = (Episode(task, task.hosts(7), seed=7) for _ in range(2))
    assert [first.step((8, 16, 32, 64)) for _ in range(5)] == [second.step((8, 16, 32, 64)) for _ in range(5)]
    assert first.seconds == second.seconds > 0 and first.accuracy > 0.1


def test_hosts_of_the_evaluation_are_not_those_of_the_training(task) -> None:
    speeds = [np.array(task.hosts(seed, unseen=True).speeds) for seed in range(20)]
    shares = {round(float(one / max(each)), 6) for each in speeds for one in each}
    assert shares <= {round(one / other, 6) for one in UNSEEN for other in UNSEEN}
    seen = [np.array(task.hosts(seed).speeds) for seed in range(20)]
    assert {round(float(one / max(each)), 6) for each in seen for one in each} <= {1.0, 0.5, 0.25}


def test_a_slow_worker_holds_all_up_until_its_share_is_smaller(task) -> None:
    hosts = dataclasses.replace(task.hosts(0), speeds=(1000.0, 1000.0, 1000.0, 100.0), overhead_samples=2.0, contention=0.0)
    target = 0.9
    static = evaluated_run(task, StaticPolicy(), hosts, target=target, seed=1, local_batch=32)
    shared = evaluated_run(task, ProportionalPolicy(), hosts, target=target, seed=1, local_batch=32)
    assert shared.seconds < 0.6 * static.seconds
    assert sum(shared.local_batches) == 128 and shared.local_batches[3] < 10


def test_who_does_not_arrive_has_no_time(task) -> None:
    found = evaluated_run(task, StaticPolicy(), task.hosts(0), target=0.9, seed=1, local_batch=4, most_windows=2)
    assert found.seconds is None and found.windows == 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_learns_the_same(algorithm, task) -> None:
    finished = []
    first, second = (
        learned(task, algorithm, episodes=2, seed=4, provenance={"job": "a"}, on_episode=lambda *each: finished.append(each))
        for _ in range(2)
    )
    assert all((one[0] == other[0]).all() for one, other in zip(first.layers, second.layers, strict=True))
    assert [number for number, _ in finished] == [0, 1, 0, 1]
    assert all(rewards.shape == (WINDOWS, RUNS * task.workers) for _, rewards in finished)
    assert all((one == other).all() for (_, one), (_, other) in zip(finished[:2], finished[2:], strict=True))
    assert first.provenance == {"job": "a", "algorithm": algorithm, "episodes": 2, "seed": 4, "workers": 4}
    different = learned(task, algorithm, episodes=1, seed=5, provenance={})
    assert (first.layers[0][0] != different.layers[0][0]).any()


@pytest.mark.slow
@pytest.mark.nightly
def test_what_ppo_has_learned_beats_static_sizes_on_workers_that_it_never_saw(task) -> None:
    pytest.importorskip("stable_baselines3", reason="the extra `learn` is not installed")
    found = {each.name: each for each in scores(task, learned(task, "ppo", episodes=40, seed=0, provenance={}), seed=0, runs=8)}
    assert found["learned"].of_static < 0.8 and found["learned"].failed == 0


def test_static_sizes_are_doublings_within_the_bounds(task) -> None:
    assert sizes(task.actions) == [4, 8, 16, 32, 64, 128]


def test_a_learned_policy_does_what_its_weights_prefer(weights) -> None:
    decision = LearnedPolicy(weights=weights).decide(state())
    first, second = decision.local_batches or (32, 64)
    assert decision.command == (DecisionKind.NO_OP if (first, second) == (32, 64) else DecisionKind.SCALE_BS)
    assert decision.command == DecisionKind.NO_OP or decision.configuration.global_batch == first + second
    assert LearnedPolicy(weights=weights).decide(state()) == decision


def test_batches_stay_within_their_bounds(weights) -> None:
    decision = LearnedPolicy(weights=biased(weights, 4)).decide(state())
    assert decision.local_batches == (132, 164) and decision.configuration.global_batch == 296 and "+100, +100" in decision.reason
    assert LearnedPolicy(weights=biased(weights, 0)).decide(state()).local_batches == (32, 32)
    still = LearnedPolicy(weights=biased(weights, 2)).decide(state())
    assert still.command == DecisionKind.NO_OP and "changes no batch" in still.reason


def test_the_lot_is_drawn_alike_for_the_same_situation(weights) -> None:
    policy = ExploringPolicy(weights=weights, seed=3)
    assert policy.decide(state(samples=64)) == policy.decide(state(samples=64))
    decisions = [policy.decide(state(samples=64 * number)) for number in range(50)]
    assert len({decision.local_batches for decision in decisions}) > 10


@pytest.mark.parametrize("policy", [LearnedPolicy, ExploringPolicy])
def test_it_says_when_workers_are_silent(policy, weights) -> None:
    decision = policy(weights=weights).decide(JobState(configuration=state().configuration, noise_scale=None))
    assert decision.limits == (Limit.UNKNOWN,)


@pytest.mark.parametrize(("text", "with_weights"), [("rl", False), ("explore", False), ("static", True), ("explore,mood=1", True)])
def test_weights_where_they_belong(text, with_weights, weights) -> None:
    with pytest.raises(InputError):
        policy_of(text, weights if with_weights else None)


@pytest.mark.parametrize("text", ["explore,seed=-1", "rl,online=1,seed=-1"])
def test_a_seed_from_which_nothing_can_be_drawn_is_refused_before_the_run(text, weights) -> None:
    with pytest.raises(InputError, match="`seed = -1` is negative"):
        ControllerFactory(None, policy_of(text, weights))


def test_it_goes_on_learning_where_it_is_asked_to(weights) -> None:
    """The policy begins without preferences, and only a step up pays."""
    policy = LearnedPolicy(weights=biased(weights, None), online=1)
    states, ups = state(), []
    for window in range(400):
        after = policy.decide(dataclasses.replace(states, samples=window)).local_batches or (32, 64)
        ups.append(after[0] == 132)
        accuracy = 1.0 if ups[-1] else 0.0
        workers = tuple(dataclasses.replace(each, accuracy=accuracy, accuracy_gain=0.0) for each in state().workers)
        states = state(workers=workers)
    assert sum(ups[-100:]) > sum(ups[:100]) + 10


def test_a_network_has_a_preference_for_each_action(weights) -> None:
    assert [weight.shape for weight, _ in layers_of(network(len(NAMES), 5))] == [(64, len(NAMES)), (64, 64), (5, 64)]
