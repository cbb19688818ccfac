"""Train a policy on simulated runs, by PPO with clipping and advantages or by the paper's simplification."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from oppa import catalog
from oppa.control.rl.episode import Episode, EpisodeTask
from oppa.control.rl.learner import GAMMA, Learner, cumulative, layers_of, network
from oppa.control.rl.observation import NAMES, observations
from oppa.control.rl.weights import CLIP, Weights, normalisation
from oppa.errors import EnvironmentLackingError
from oppa.random_streams import stream

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

Array = NDArray[np.float64]
EpisodeCallback = Callable[[int, Array], None]
"""Callback after each episode: receives its number and its rewards, shape (windows, runs * workers)."""

ALGORITHMS = ("ppo", "paper")
WINDOWS = 60
"""Windows of an episode."""
CLIPPING, TRADE_OFF, ENTROPY, EPOCHS = 0.2, 0.95, 0.01, 10
"""PPO settings: clipping epsilon (eq. 1), lambda of the advantage estimate, entropy coefficient, and epochs per episode."""
RATE = 1e-3
"""Initial learning rate of PPO's optimizer; it decays linearly to 0."""
RUNS = 8
"""Parallel simulated runs of an episode, each with workers of its own."""


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
    course = _Course(task, mean=mean, deviation=deviation, seed=seed)
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
        episode = Episode(task, task.hosts(_seed(seed, 0, run)), seed=run)
        for _ in range(WINDOWS):
            found.append(observations(episode.state, task.actions))
            drawn = random.integers(len(task.actions.steps), size=task.workers)
            episode.step(task.actions.after(episode.local_batches, drawn.tolist()))
    return found


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Runs:
    """Parallel runs; arrays have one row for each worker of each run, n rows in all."""

    task: EpisodeTask
    episodes: Sequence[Episode]
    mean: Array
    deviation: Array

    def seen(self) -> Array:
        """Return the normalised observations, shape (n, d)."""
        rows = np.concatenate([observations(each.state, self.task.actions) for each in self.episodes])
        return np.clip((rows - self.mean) / self.deviation, -CLIP, CLIP)

    def step(self, chosen: Sequence[int]) -> Array:
        """Run the next window with the chosen actions; return the rewards, shape (n,)."""
        rewards, count = list[float](), self.task.workers
        for index, each in enumerate(self.episodes):
            own = chosen[index * count : (index + 1) * count]
            rewards += each.step(self.task.actions.after(each.local_batches, own))
        return np.array(rewards)


class _Course:
    """A sequence of episodes, each on newly drawn hosts."""

    def __init__(self, task: EpisodeTask, *, mean: Array, deviation: Array, seed: int) -> None:
        self.task, self._mean, self._deviation, self.seed = task, mean, deviation, seed
        self.number = 0

    def next(self) -> _Runs:
        """Begin the next episode, and return its runs."""
        self.number += 1
        seeds = [_seed(self.seed, self.number, run) for run in range(RUNS)]
        return _Runs(
            task=self.task,
            episodes=[Episode(self.task, self.task.hosts(each), seed=each) for each in seeds],
            mean=self._mean,
            deviation=self._deviation,
        )


def _seed(seed: int, episode: int, run: int) -> int:
    return (seed * 100_003 + episode) * RUNS + run


def _as_written(course: _Course, episodes: int, on_episode: EpisodeCallback) -> tuple[tuple[Array, Array], ...]:
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


def drawn(probabilities: Array, random: np.random.Generator) -> NDArray[np.intp]:
    """Draw the number of an action for each row, by probabilities of shape (n, actions)."""
    return np.asarray((probabilities.cumsum(1) > random.random((len(probabilities), 1))).argmax(1))


def _by_ppo(course: _Course, episodes: int, on_episode: EpisodeCallback) -> tuple[tuple[Array, Array], ...]:
    """Train by PPO of stable-baselines3, with one policy for all workers; each worker is a separate environment."""
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import Logger
    except ImportError:
        hint = f"{catalog.install_hint('learn')}, or use `--algorithm paper`"
        raise EnvironmentLackingError("PPO needs stable-baselines3, which is not installed", hint=hint) from None

    class EpisodeListener(BaseCallback):
        """Calls `on_episode` after each episode."""

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            on_episode(self.model._n_updates // EPOCHS, self.model.rollout_buffer.rewards.astype(np.float64))  # type: ignore[attr-defined]

    environment = _environment(course)
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


def _environment(course: _Course) -> "VecEnv":
    """Build a stable-baselines3 environment of all workers of an episode's runs; after an episode the next one begins."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Workers(VecEnv):
        """Vector environment with one row for each worker."""

        def __init__(self) -> None:
            count, actions = course.task.workers * RUNS, len(course.task.actions.steps)
            super().__init__(count, spaces.Box(-CLIP, CLIP, (len(NAMES),), np.float32), spaces.Discrete(actions))
            self._chosen: list[int] = []

        def reset(self) -> Any:
            """Begin an episode, and return its first observations."""
            self._runs, self._windows = course.next(), 0
            return self._runs.seen().astype(np.float32)

        def step_async(self, actions: Any) -> None:
            """Store the next actions of the workers."""
            self._chosen = [int(each) for each in actions]

        def step_wait(self) -> Any:
            """Run a window with the stored actions, and return its result."""
            rewards = self._runs.step(self._chosen)
            self._windows += 1
            over = self._windows >= WINDOWS
            last = self._runs.seen().astype(np.float32)
            infos = [{"terminal_observation": row, "TimeLimit.truncated": True} if over else {} for row in last]
            return self.reset() if over else last, rewards.astype(np.float32), np.full(self.num_envs, over), infos

        def close(self) -> None:
            """Do nothing, because there are no resources to close."""

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            """Return an attribute, which is common to all environments."""
            return [getattr(self, attr_name, None)] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Raise AttributeError, because no attribute can be set."""
            raise AttributeError(attr_name)

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            """Raise AttributeError, because single environments have no methods."""
            raise AttributeError(method_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            """Return False for all environments, because none is wrapped."""
            return [False] * self.num_envs

    return Workers()
