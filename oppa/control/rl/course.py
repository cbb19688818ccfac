"""Simulate the episodes on which a policy is trained: several runs at once, each on newly drawn hosts."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.rl.episode import Episode, EpisodeTask
from oppa.control.rl.observation import observations
from oppa.control.rl.weights import CLIP

Array = NDArray[np.float64]

WINDOWS = 60
"""Windows of an episode."""
RUNS = 8
"""Parallel simulated runs of an episode, each with workers of its own."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParallelRuns:
    """Steps parallel runs; arrays have one row for each worker of each run, n rows in all."""

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


class Course:
    """Provides a sequence of episodes, each on newly drawn hosts."""

    def __init__(self, task: EpisodeTask, *, mean: Array, deviation: Array, seed: int) -> None:
        self.task, self._mean, self._deviation, self.seed = task, mean, deviation, seed
        self.number = 0

    def next(self) -> ParallelRuns:
        """Begin the next episode, and return its runs."""
        self.number += 1
        seeds = [seed_of(self.seed, self.number, run) for run in range(RUNS)]
        return ParallelRuns(
            task=self.task,
            episodes=[Episode(self.task, self.task.hosts(each), seed=each) for each in seeds],
            mean=self._mean,
            deviation=self._deviation,
        )


def seed_of(seed: int, episode: int, run: int) -> int:
    """Return the seed of a run; no two runs of a course share one."""
    return (seed * 100_003 + episode) * RUNS + run
