"""A simulated training run, window by window, as a policy meets it: what it learns on, and what it is judged on."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from oppa.control.decision import HEALTHY, Policy, Situation
from oppa.control.learned.actions import Actions
from oppa.control.learned.reward import Reward, sample_s
from oppa.problem.configuration import Configuration
from oppa.simulator.learning_curve import LearningCurve
from oppa.simulator.workers import Hosts, UnevenWorkers
from oppa.streams import stream

SEEN, UNSEEN = (1.0, 0.5, 0.25), (0.85, 0.6, 0.35, 0.15)
"""Speeds of workers against a whole core's: what a policy learns on, and what it is judged on."""
FAST, SLOW = (3e2, 3e3), (1e8, 1e9)
"""Between which a whole core's samples per second lie, and bytes per second of a link."""
OVERHEAD = (4.0, 32.0)
"""Between which a step's overhead lies, in samples. The digits example: about 20."""
CONTENTION = 0.02
TRAFFIC, RETRANSMISSIONS = (0.5, 20.0), (1e-2, 30.0)
MEMORY, SAMPLE_MEMORY = (2e-3, 0.3), (1e-6, 1e-3)
"""What counters show beside, from run to run: nothing that a policy should go by."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a simulated job is about."""

    curve: LearningCurve
    actions: Actions
    reward: Reward
    workers: int
    local_batch: int
    """Of each worker in the beginning, in samples."""
    window: int
    """Steps between two decisions."""
    gradient_bytes: float

    def hosts(self, seed: int, *, unseen: bool = False) -> Hosts:
        """Drawn anew for each seed; `unseen`: of speeds that nothing is learned on."""
        random = stream(seed, "hosts, unseen" if unseen else "hosts")

        def drawn(bounds: tuple[float, float]) -> float:
            return float(np.exp(random.uniform(*np.log(bounds))))

        fastest = drawn(FAST)
        return Hosts(
            speeds=tuple(fastest * float(share) for share in random.choice(UNSEEN if unseen else SEEN, self.workers)),
            overhead_samples=drawn(OVERHEAD),
            gradient_bytes=self.gradient_bytes,
            bandwidth_bytes_per_s=drawn(SLOW),
            contention=CONTENTION,
            traffic=drawn(TRAFFIC),
            retransmissions=drawn(RETRANSMISSIONS),
            memory_share=drawn(MEMORY),
            sample_memory_share=drawn(SAMPLE_MEMORY),
            quota=bool(random.random() < 0.5),
        )


class Episode:
    """One run from its beginning on."""

    def __init__(self, task: Task, hosts: Hosts, *, seed: int, local_batches: Sequence[int] = ()) -> None:
        self._task, self._world = task, UnevenWorkers(hosts, task.curve, seed=seed)
        self.local_batches = tuple(local_batches) or (task.local_batch,) * task.workers
        self.situation = self._window()
        self._first_sample_s = sample_s(self.situation)

    @property
    def seconds(self) -> float:
        """On the run's clock, so far."""
        return self._world.seconds

    @property
    def accuracy(self) -> float:
        """Of held-out samples, now."""
        return self._world.accuracy

    def step(self, local_batches: Sequence[int]) -> list[float]:
        """The next window with these; what it was worth to each worker."""
        self.local_batches = tuple(local_batches)
        self.situation = self._window()
        return self._task.reward.of(self.situation, least=self._task.actions.least, first_sample_s=self._first_sample_s)

    def _window(self) -> Situation:
        seen = self._world.window(self.local_batches, self._task.window)
        total = sum(self.local_batches)
        return Situation(
            configuration=Configuration(dp=len(self.local_batches), global_batch=total, micro_batch=max(self.local_batches)),
            noise_scale=self._task.curve.noise_scale,
            health=HEALTHY,
            variance_ratio=seen.variance_ratio,
            local_batches=self.local_batches,
            workers=seen.workers,
            losses=seen.losses,
            accuracy=seen.accuracy,
            elapsed_s=self._world.seconds,
            samples=self._world.samples,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How a policy has done in a run."""

    seconds: float | None
    """Until the accuracy was reached; None where it was not."""
    windows: int
    local_batches: tuple[int, ...]
    """In the end."""


def judged(task: Task, policy: Policy, hosts: Hosts, *, target: float, seed: int, local_batch: int, most_windows: int = 5000) -> Judged:
    """A run under a policy until held-out samples are hit so often.

    Args:
        target: Accuracy.
        local_batch: Of each worker in the beginning, in samples.
    """
    episode = Episode(task, hosts, seed=seed, local_batches=(local_batch,) * task.workers)
    for window in range(most_windows):
        if episode.accuracy >= target:
            return Judged(seconds=episode.seconds, windows=window + 1, local_batches=episode.local_batches)
        decision = policy.decide(episode.situation)
        episode.step(decision.local_batches or (local_batch,) * task.workers)
    return Judged(seconds=None, windows=most_windows, local_batches=episode.local_batches)
