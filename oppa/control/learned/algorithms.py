"""How a policy is learned on simulated runs: by PPO with clipping and advantages, or as the paper simplifies it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from oppa import catalog
from oppa.control.learned.episode import Episode, Task
from oppa.control.learned.learner import GAMMA, Learner, cumulative, layers_of, network
from oppa.control.learned.observation import NAMES, observations
from oppa.control.learned.weights import CLIP, Weights, normalisation
from oppa.errors import EnvironmentLackingError
from oppa.streams import stream

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

Array = NDArray[np.float64]
Told = Callable[[int, Array], None]
"""Receives each episode: its number, and the rewards of its windows, shape (windows, runs * workers)."""

ALGORITHMS = ("ppo", "paper")
WINDOWS = 60
"""Of an episode."""
CLIPPING, TRADE_OFF, ENTROPY, EPOCHS = 0.2, 0.95, 0.01, 10
"""Of PPO: epsilon (eq. 1), the lambda of its advantages, how much it likes to try things, and how often it goes over an episode."""
RATE = 1e-3
"""Of PPO's optimizer in the beginning; it falls in a straight line."""
RUNS = 8
"""Simulated runs, each with workers of its own, that an episode has side by side."""


def learned(task: Task, algorithm: str, *, episodes: int, seed: int, provenance: dict[str, Any], told: Told = lambda *_: None) -> Weights:
    """A policy, from so many episodes.

    Args:
        algorithm: One of ALGORITHMS.
        provenance: What else is to be kept of where it comes from.

    Raises:
        EnvironmentLackingError: without gymnasium and stable-baselines3, for `ppo`.
    """
    mean, deviation = normalisation(_tried(task, seed))
    course = _Course(task, mean=mean, deviation=deviation, seed=seed)
    layers = (_by_ppo if algorithm == "ppo" else _as_written)(course, episodes, told)
    return Weights(
        layers=layers,
        mean=mean,
        deviation=deviation,
        actions=task.actions,
        reward=task.reward,
        window=task.window,
        provenance={**provenance, "algorithm": algorithm, "episodes": episodes, "seed": seed, "workers": task.workers},
    )


def _tried(task: Task, seed: int) -> list[Array]:
    """What workers say in runs in which actions are drawn by lot: what observations look like."""
    random, found = stream(seed, "tried"), []
    for run in range(RUNS):
        episode = Episode(task, task.hosts(_seed(seed, 0, run)), seed=run)
        for _ in range(WINDOWS):
            found.append(observations(episode.situation, task.actions))
            drawn = random.integers(len(task.actions.steps), size=task.workers)
            episode.step(task.actions.after(episode.local_batches, drawn.tolist()))
    return found


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Runs:
    """Runs side by side; a row for each worker of each."""

    task: Task
    episodes: Sequence[Episode]
    mean: Array
    deviation: Array

    def seen(self) -> Array:
        """Normalised observations, shape (n, d)."""
        rows = np.concatenate([observations(each.situation, self.task.actions) for each in self.episodes])
        return np.clip((rows - self.mean) / self.deviation, -CLIP, CLIP)

    def step(self, chosen: Sequence[int]) -> Array:
        """Rewards, shape (n,)."""
        rewards, count = list[float](), self.task.workers
        for index, each in enumerate(self.episodes):
            own = chosen[index * count : (index + 1) * count]
            rewards += each.step(self.task.actions.after(each.local_batches, own))
        return np.array(rewards)


class _Course:
    """Episode after episode, each with hosts that were not there before."""

    def __init__(self, task: Task, *, mean: Array, deviation: Array, seed: int) -> None:
        self.task, self._mean, self._deviation, self.seed = task, mean, deviation, seed
        self.number = 0

    def next(self) -> _Runs:
        """The next episode's runs."""
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


def _as_written(course: _Course, episodes: int, told: Told) -> tuple[tuple[Array, Array], ...]:
    """The cumulative reward, without clipping or advantages (section IV-A)."""
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
        told(number, np.array(rewards))
    return layers_of(learner.module)


def drawn(probabilities: Array, random: np.random.Generator) -> NDArray[np.intp]:
    """The number of an action for each row, by its probabilities (n, actions)."""
    return np.asarray((probabilities.cumsum(1) > random.random((len(probabilities), 1))).argmax(1))


def _by_ppo(course: _Course, episodes: int, told: Told) -> tuple[tuple[Array, Array], ...]:
    """PPO of stable-baselines3, with one policy for all workers: each is an environment of its own to it."""
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import Logger
    except ImportError:
        hint = f"{catalog.install_hint('learn')}, or use `--algorithm paper`"
        raise EnvironmentLackingError("PPO is stable-baselines3's, which is not installed", hint=hint) from None

    class Listener(BaseCallback):
        """Tells of each episode."""

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            told(self.model._n_updates // EPOCHS, self.model.rollout_buffer.rewards.astype(np.float64))  # type: ignore[attr-defined]

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
    model.set_logger(Logger(None, []))  # else it makes a folder of its own among the machine's temporary files
    model.learn(episodes * rows, callback=Listener())
    policy = torch.nn.Sequential(*model.policy.mlp_extractor.policy_net, model.policy.action_net)
    return layers_of(policy)


def _environment(course: _Course) -> "VecEnv":
    """All workers of an episode's runs, as stable-baselines3 has environments; the next episode follows by itself."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Workers(VecEnv):
        """One row for each."""

        def __init__(self) -> None:
            count, actions = course.task.workers * RUNS, len(course.task.actions.steps)
            super().__init__(count, spaces.Box(-CLIP, CLIP, (len(NAMES),), np.float32), spaces.Discrete(actions))
            self._chosen: list[int] = []

        def reset(self) -> Any:
            """An episode begins."""
            self._runs, self._windows = course.next(), 0
            return self._runs.seen().astype(np.float32)

        def step_async(self, actions: Any) -> None:
            """What workers do next."""
            self._chosen = [int(each) for each in actions]

        def step_wait(self) -> Any:
            """What came of it."""
            rewards = self._runs.step(self._chosen)
            self._windows += 1
            over = self._windows >= WINDOWS
            last = self._runs.seen().astype(np.float32)
            told = [{"terminal_observation": row, "TimeLimit.truncated": True} if over else {} for row in last]
            return self.reset() if over else last, rewards.astype(np.float32), np.full(self.num_envs, over), told

        def close(self) -> None:
            """Nothing is open."""

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            """The same of all."""
            return [getattr(self, attr_name, None)] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Nothing can be set."""
            raise AttributeError(attr_name)

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            """There are no methods of single ones."""
            raise AttributeError(method_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            """None is."""
            return [False] * self.num_envs

    return Workers()
