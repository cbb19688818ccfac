"""Show the workers of simulated runs to stable-baselines3 as its environments; this module needs the extra `learn`."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from oppa.control.rl.course import RUNS, WINDOWS, Course
from oppa.control.rl.observation import NAMES
from oppa.control.rl.weights import CLIP


class Workers(VecEnv):
    """Steps all workers of an episode's runs, a row each; after an episode the next one begins."""

    def __init__(self, course: Course) -> None:
        count, actions = course.task.workers * RUNS, len(course.task.actions.steps)
        super().__init__(count, spaces.Box(-CLIP, CLIP, (len(NAMES),), np.float32), spaces.Discrete(actions))
        self._course, self._chosen = course, list[int]()

    def reset(self) -> Any:
        """Begin an episode, and return its first observations."""
        self._runs, self._windows = self._course.next(), 0
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
