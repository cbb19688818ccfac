"""Simulate a training run window by window, for training and evaluating a policy."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from oppa.control.decision import HEALTHY, JobState, Policy
from oppa.control.rl.actions import Actions
from oppa.control.rl.reward import Reward, sample_s
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import Scaling
from oppa.random_streams import stream
from oppa.simulator.learning_curve import LearningCurve
from oppa.simulator.workers import Hosts, UnevenWorkers
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec

SEEN, UNSEEN = (1.0, 0.5, 0.25), (0.85, 0.6, 0.35, 0.15)
"""Speeds of workers relative to a whole core: for training a policy, and for evaluating it."""
FAST, SLOW = (3e2, 3e3), (1e8, 1e9)
"""Ranges of the samples per second of a whole core, and of the bytes per second of a link."""
OVERHEAD = (4.0, 32.0)
"""Range of a step's overhead, in equivalent samples. The digits example has about 20."""
CONTENTION = 0.02
TRAFFIC, RETRANSMISSIONS = (0.5, 20.0), (1e-2, 30.0)
MEMORY, SAMPLE_MEMORY = (2e-3, 0.3), (1e-6, 1e-3)
"""Ranges of counters that differ between runs and carry no information for a policy (traffic, retransmissions, memory)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTask:
    """Specifies a simulated job."""

    curve: LearningCurve
    actions: Actions
    reward: Reward
    workers: int
    local_batch: int
    """Initial batch of each worker, in samples."""
    window: int
    """Steps between two decisions."""
    gradient_bytes: float

    @classmethod
    def of_job(cls, problem: Problem, curve: LearningCurve, *, reward: Reward, window: int) -> Self:
        """Return the simulated form of a job; raises InputError if its workers cannot have batches of their own."""
        workers, batch = problem.cluster.devices, problem.global_batch
        if workers < 2 or batch < workers:
            hint = "give the job at least two devices, and a sample for each"
            raise InputError(f"{workers} workers with a batch of {batch} have no batch to split", hint=hint)
        return cls(
            curve=curve,
            actions=Actions.scaled(batch // workers),
            reward=reward,
            workers=workers,
            local_batch=batch // workers,
            window=window,
            gradient_bytes=4.0 * problem.model.parameter_count,
        )

    def hosts(self, seed: int, *, unseen: bool = False) -> Hosts:
        """Draw the hosts for a seed; `unseen` uses speeds that do not occur in training."""
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


def curve_of_runs(folders: Sequence[Path], scaling: Scaling) -> LearningCurve:
    """Return the learning curve of runs with different batch sizes; raises RunError if a folder holds no run."""
    for folder in folders:
        RunSpec.read(folder)
    return LearningCurve.of([ledger.standing(ledger.read(folder)) for folder in folders], scaling)


class Episode:
    """Simulates one run, from its start."""

    def __init__(self, task: EpisodeTask, hosts: Hosts, *, seed: int, local_batches: Sequence[int] = ()) -> None:
        self._task, self._world = task, UnevenWorkers(hosts, task.curve, seed=seed)
        self.local_batches = tuple(local_batches) or (task.local_batch,) * task.workers
        self.state = self._window()
        self._first_sample_s = sample_s(self.state)

    @property
    def seconds(self) -> float:
        """Return the elapsed seconds on the simulated clock."""
        return self._world.seconds

    @property
    def accuracy(self) -> float:
        """Return the present accuracy on held-out samples."""
        return self._world.accuracy

    def step(self, local_batches: Sequence[int]) -> list[float]:
        """Run the next window with these local batches; return the reward of each worker."""
        self.local_batches = tuple(local_batches)
        self.state = self._window()
        return self._task.reward.of(self.state, least=self._task.actions.least, first_sample_s=self._first_sample_s)

    def _window(self) -> JobState:
        seen = self._world.window(self.local_batches, self._task.window)
        total = sum(self.local_batches)
        return JobState(
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
class EvaluatedRun:
    """Holds the result of a run under a policy."""

    seconds: float | None
    """Seconds until the target accuracy was reached; None if it was not."""
    windows: int
    local_batches: tuple[int, ...]
    """Local batches at the end of the run."""


def evaluated_run(
    task: EpisodeTask, policy: Policy, hosts: Hosts, *, target: float, seed: int, local_batch: int, most_windows: int = 5000
) -> EvaluatedRun:
    """Run a policy until the accuracy on held-out samples reaches a target.

    Args:
        task: Specification of the job.
        policy: Policy to evaluate.
        hosts: Hosts of the workers.
        target: Accuracy on held-out samples, from 0 to 1.
        seed: Seed of the simulation.
        local_batch: Initial batch of each worker, in samples.
        most_windows: Number of windows after which the run ends without reaching the target.
    """
    episode = Episode(task, hosts, seed=seed, local_batches=(local_batch,) * task.workers)
    for window in range(most_windows):
        if episode.accuracy >= target:
            return EvaluatedRun(seconds=episode.seconds, windows=window + 1, local_batches=episode.local_batches)
        decision = policy.decide(episode.state)
        episode.step(decision.local_batches or (local_batch,) * task.workers)
    return EvaluatedRun(seconds=None, windows=most_windows, local_batches=episode.local_batches)
