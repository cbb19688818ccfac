"""Train a policy on simulated runs, by PPO with clipping and advantages or by the paper's simplification."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oppa import catalog
from oppa.control.rl.course import RUNS, WINDOWS, Array, Course, seed_of
from oppa.control.rl.episode import Episode, EpisodeTask
from oppa.control.rl.learner import GAMMA, Learner, cumulative, layers_of, network
from oppa.control.rl.observation import NAMES, observations
from oppa.control.rl.policy import drawn
from oppa.control.rl.weights import Weights, normalisation
from oppa.errors import EnvironmentLackingError
from oppa.random_streams import stream

EpisodeCallback = Callable[[int, Array], None]
"""Callback after each episode: receives its number and its rewards, shape (windows, runs * workers)."""

ALGORITHMS = ("ppo", "paper")
CLIPPING, TRADE_OFF, ENTROPY, EPOCHS = 0.2, 0.95, 0.01, 10
"""PPO settings: clipping epsilon (eq. 1), lambda of the advantage estimate, entropy coefficient, and epochs per episode."""
RATE = 1e-3
"""Initial learning rate of PPO's optimizer; it decays linearly to 0."""


def learned(
    task: EpisodeTask,
    algorithm: str,
    *,
    episodes: int,
    seed: int,
    provenance: dict[str, Any],
    on_episode: EpisodeCallback = lambda *_: None,
) -> Weights:
    """Train a policy and return its weights.

    Args:
        task: Simulated job.
        algorithm: One of ALGORITHMS.
        episodes: Number of episodes.
        seed: Seed of hosts, runs and actions.
        provenance: Further entries for the provenance of the weights.
        on_episode: Callback after each episode.

    Raises:
        EnvironmentLackingError: for `ppo` without gymnasium and stable-baselines3.
    """
    mean, deviation = normalisation(_tried(task, seed))
    course = Course(task, mean=mean, deviation=deviation, seed=seed)
    layers = (_by_ppo if algorithm == "ppo" else _as_written)(course, episodes, on_episode)
    return Weights(
        layers=layers,
        mean=mean,
        deviation=deviation,
        actions=task.actions,
        reward=task.reward,
        window=task.window,
        provenance={**provenance, "algorithm": algorithm, "episodes": episodes, "seed": seed, "workers": task.workers},
    )


def _tried(task: EpisodeTask, seed: int) -> list[Array]:
    """Return observations from runs with uniformly random actions, from which the normalisation is computed."""
    random, found = stream(seed, "tried"), []
    for run in range(RUNS):
        episode = Episode(task, task.hosts(seed_of(seed, 0, run)), seed=run)
        for _ in range(WINDOWS):
            found.append(observations(episode.state, task.actions))
            drawn = random.integers(len(task.actions.steps), size=task.workers)
            episode.step(task.actions.after(episode.local_batches, drawn.tolist()))
    return found


def _as_written(course: Course, episodes: int, on_episode: EpisodeCallback) -> tuple[tuple[Array, Array], ...]:
    """Train on the cumulative reward, without clipping or advantages (section IV-A)."""
    torch.manual_seed(course.seed)
    learner = Learner(network(len(NAMES), len(course.task.actions.steps)))
    random = stream(course.seed, "actions")
    for number in range(episodes):
        runs = course.next()
        seen, chosen, rewards = list[Array](), list[NDArray[np.intp]](), list[Array]()
        for _ in range(WINDOWS):
            seen.append(runs.seen())
            chosen.append(drawn(learner.probabilities(seen[-1]), random))
            rewards.append(runs.step(chosen[-1].tolist()))
        learner.update(np.concatenate(seen), np.concatenate(chosen).tolist(), cumulative(np.array(rewards)).ravel())
        on_episode(number, np.array(rewards))
    return layers_of(learner.module)


def _by_ppo(course: Course, episodes: int, on_episode: EpisodeCallback) -> tuple[tuple[Array, Array], ...]:
    """Train by PPO of stable-baselines3, with one policy for all workers; each worker is a separate environment."""
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import Logger

        from oppa.control.rl.vector_environment import Workers
    except ImportError:
        hint = f"{catalog.install_hint('learn')}, or use `--algorithm paper`"
        raise EnvironmentLackingError("PPO needs stable-baselines3, which is not installed", hint=hint) from None

    class EpisodeListener(BaseCallback):
        """Calls `on_episode` after each episode."""

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            on_episode(self.model._n_updates // EPOCHS, self.model.rollout_buffer.rewards.astype(np.float64))  # type: ignore[attr-defined]

    environment = Workers(course)
    rows = environment.num_envs * WINDOWS
    model = PPO(
        "MlpPolicy",
        environment,
        n_steps=WINDOWS,
        batch_size=rows // 4,
        n_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=TRADE_OFF,
        clip_range=CLIPPING,
        ent_coef=ENTROPY,
        learning_rate=lambda left: RATE * left,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=course.seed,
        device="cpu",
    )
    model.set_logger(Logger(None, []))  # the default logger creates a temporary folder
    model.learn(episodes * rows, callback=EpisodeListener())
    policy = torch.nn.Sequential(*model.policy.mlp_extractor.policy_net, model.policy.action_net)
    return layers_of(policy)
