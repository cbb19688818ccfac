"""A small job on uneven workers."""

import dataclasses

import numpy as np
import pytest

from oppa.control.decision import JobState
from oppa.control.rl.actions import Actions
from oppa.control.rl.episode import Episode, EpisodeTask
from oppa.control.rl.learner import layers_of, network
from oppa.control.rl.observation import NAMES
from oppa.control.rl.off_policy_evaluation import RecordedWindow
from oppa.control.rl.policy import ExploringPolicy
from oppa.control.rl.reward import Reward
from oppa.control.rl.weights import Weights
from oppa.problem.configuration import Configuration
from oppa.simulator.learning_curve import LearningCurve
from tests.control.services import worker

CURVE = LearningCurve(
    progress=(10.0, 1e3, 1e4, 3e4), loss=(2.3, 1.2, 0.4, 0.2), accuracy=(0.1, 0.6, 0.9, 0.95), noise_scale=100.0, scaling="sqrt"
)


@pytest.fixture
def task() -> EpisodeTask:
    return EpisodeTask(curve=CURVE, actions=Actions.scaled(32), reward=Reward(), workers=4, local_batch=32, window=10, gradient_bytes=1e6)


def state(**changes) -> JobState:
    """Two workers, a step of 0.3 s, 64 samples; V / |g|^2 = 16, so that s = 0.5."""
    values = {"configuration": Configuration(dp=2, global_batch=64, micro_batch=32), "noise_scale": None, "variance_ratio": 16.0}
    return JobState(**{**values, "workers": (worker(accuracy_gain=2.0), worker(local_batch=64)), **changes})


@pytest.fixture
def weights() -> Weights:
    return Weights(
        layers=layers_of(network(len(NAMES), 5)),
        mean=np.zeros(len(NAMES)),
        deviation=np.ones(len(NAMES)),
        actions=Actions(),
        reward=Reward(delta=0.25),
        window=20,
        provenance={"command": "oppa train-policy job.toml", "seed": 3},
    )


def biased(weights, action: int | None):
    """Weights that always prefer one action, or none."""
    layers = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in weights.layers]
    if action is not None:
        layers[-1][1][action] = 1.0
    return dataclasses.replace(weights, layers=tuple(layers))


def explored(task, weights, windows: int, seed: int = 0) -> list[RecordedWindow]:
    """Simulate a run whose steps are drawn at random."""
    episode, policy, found = Episode(task, task.hosts(seed), seed=seed), ExploringPolicy(weights=weights, seed=seed), []
    for number in range(windows):
        before, early = episode.state, (found[-1].rewards if found else (0.0,) * task.workers)
        drawn = tuple(policy.chosen(before))
        after = policy.decide(before).local_batches or episode.local_batches
        rewards = episode.step(after)
        batches, actions = [each.local_batch for each in before.workers], weights.actions
        chosen = actions.chosen(batches, after)
        likely = tuple(actions.alike(batch, number) / 5 for batch, number in zip(batches, chosen, strict=True))
        choice = {"drawn": drawn, "chosen": tuple(chosen), "probabilities": likely}
        found.append(RecordedWindow(state=before, rewards=tuple(rewards), before=early, number=number, **choice))
    return found


def paid(windows: list[RecordedWindow], best: int) -> list[RecordedWindow]:
    """The same with rewards that we know: 1 for one step, 0 for all others."""
    return [dataclasses.replace(each, rewards=tuple(float(step == best) for step in each.chosen)) for each in windows]


@pytest.fixture
def small(task, weights):
    return dataclasses.replace(weights, actions=task.actions)
