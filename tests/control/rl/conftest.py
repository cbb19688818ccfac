"""A small job on uneven workers."""

import pytest

from oppa.control.rl.actions import Actions
from oppa.control.rl.episode import EpisodeTask
from oppa.control.rl.reward import Reward
from oppa.simulator.learning_curve import LearningCurve

CURVE = LearningCurve(
    progress=(10.0, 1e3, 1e4, 3e4), loss=(2.3, 1.2, 0.4, 0.2), accuracy=(0.1, 0.6, 0.9, 0.95), noise_scale=100.0, scaling="sqrt"
)


@pytest.fixture
def task() -> EpisodeTask:
    return EpisodeTask(curve=CURVE, actions=Actions.scaled(32), reward=Reward(), workers=4, local_batch=32, window=10, gradient_bytes=1e6)
