"""Simulate data-parallel workers of different speed: contention, links that change, and learning progress.

The clock is simulated. A step takes the slowest worker's compute time and a ring all-reduce of the gradients:

    compute_i    (overhead + b_i) / speed_i, times the slow-down by other processes on that worker, times a jitter
    ring         2 (n - 1) (bytes / n / bandwidth + latency), by the slowest link

Notation (n workers, k steps of a window):
    local_batches    b_i, samples                    (n,)
    speeds           samples per second              (n,)
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from oppa.protocol.worker import WorkerState, accuracy_gain
from oppa.random_streams import stream
from oppa.simulator.learning_curve import LearningCurve

JITTER = 0.05
"""Standard deviation of the logarithm of a worker's compute time from step to step."""
BUSY_WINDOWS, BUSY_FACTOR = 15, (1.3, 3.0)
"""Mean duration of contention on a worker, in windows; and the range of its slow-down factor."""
CONGESTED_WINDOWS, CONGESTED_SHARE = 15, (0.2, 0.7)
"""Mean duration of congestion on a link, in windows; and the range of the bandwidth share that is left."""
VARIANCE_SCATTER = 0.65
"""Standard deviation of the logarithm of the V / |g|^2 that a step measures.

It was measured on digits, with batches of 32 to 128.
"""
RETRANSMITTED = 40.0
"""Segments that a congested link retransmits per gigabyte."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Describes the hosts that workers run on."""

    speeds: tuple[float, ...]
    """Samples per second of each worker, without contention."""
    overhead_samples: float = 16.0
    """Constant part of each worker's step, in samples.

    A worker that computes slowly therefore also has a slow constant part.
    """
    gradient_bytes: float = 4e6
    bandwidth_bytes_per_s: float = 1e9
    latency_s: float = 1e-4
    contention: float = 0.01
    """Probability that contention begins on a worker within a window; the same for congestion on a link."""
    traffic: float = 1.0
    """Traffic that network counters report, as a multiple of the gradients' traffic.

    Counters include the traffic of other processes on a host.
    """
    retransmissions: float = 0.0
    """Mean number of segments retransmitted within a window without congestion."""
    memory_share: float = 0.05
    """Share of memory that a worker takes, without its samples."""
    sample_memory_share: float = 1e-4
    """Share of memory that each sample takes."""
    quota: bool = False
    """Slow workers get less processor time; otherwise their processors are slow."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Describes the result of several steps with the same local batches."""

    workers: tuple[WorkerState, ...]
    losses: tuple[float, ...]
    seconds: float
    accuracy: float
    """Accuracy on held-out samples at its end."""
    variance_ratio: float
    """V / |g|^2 of its last step, in samples."""


class UnevenWorkers:
    """Simulates a job on such workers, window by window.

    Args:
        seed: Seed of jitter, contention and losses; the same local batches reproduce the same results.
    """

    def __init__(self, hosts: Hosts, curve: LearningCurve, *, seed: int) -> None:
        self.hosts, self.curve = hosts, curve
        self._random = stream(seed, "uneven workers")
        count = len(hosts.speeds)
        self._busy, self._left = np.ones(count), np.ones(count)
        self.progress = self.seconds = 0.0
        self.samples = 0

    @property
    def accuracy(self) -> float:
        """Return the current accuracy on held-out samples."""
        return self.curve.accuracy_at(self.progress)

    def window(self, local_batches: Sequence[int], steps: int) -> Window:
        """Simulate `steps` steps, and return their result."""
        batches, hosts, random = np.asarray(local_batches, np.float64), self.hosts, self._random
        self._change()
        count, total = len(batches), int(batches.sum())
        own = (hosts.overhead_samples + batches) / np.asarray(hosts.speeds) * self._busy
        compute = own * np.exp(JITTER * random.standard_normal((steps, count)))
        bandwidth = hosts.bandwidth_bytes_per_s * float(self._left.min())
        carried = 2 * (count - 1) * hosts.gradient_bytes / count
        ring_s = carried / bandwidth + 2 * (count - 1) * hosts.latency_s
        times = compute.max(1) + ring_s
        accuracies, losses, worth = np.empty((steps, count)), list[float](), self.curve.worth(total)
        for step in range(steps):
            right = self.curve.accuracy_at(self.progress)
            accuracies[step] = random.binomial(batches.astype(int), right) / batches
            scatter = min(1.0, 1 / math.sqrt(total * max(1 - right, 1e-2)))  # at high accuracy, few samples make up the loss
            losses.append(self.curve.loss_at(self.progress) * math.exp(scatter * random.standard_normal()))
            self.progress += worth
        seconds = float(times.sum())
        self.seconds, self.samples = self.seconds + seconds, self.samples + total * steps
        again = random.poisson(hosts.retransmissions + RETRANSMITTED * carried * steps / 1e9 * (self._left < 1))
        processor = np.asarray(hosts.speeds) / max(hosts.speeds) if hosts.quota else np.ones(count)
        workers = tuple(
            WorkerState(
                local_batch=int(batches[i]),
                throughput_bytes_per_s=2 * hosts.traffic * carried * steps / seconds,
                retransmissions=int(again[i]),
                cpu_ratio=float(processor[i] * compute[:, i].sum() / self._busy[i] / seconds),
                memory_share=min(1.0, hosts.memory_share + hosts.sample_memory_share * float(batches[i])),
                compute_s=float(compute[:, i].mean()),
                wait_s=float(times.mean() - compute[:, i].mean()),
                accuracy=float(accuracies[:, i].mean()),
                accuracy_deviation=float(accuracies[:, i].std()),
                accuracy_gain=accuracy_gain(accuracies[:, i].tolist()),
            )
            for i in range(count)
        )
        return Window(
            workers=workers,
            losses=tuple(losses),
            seconds=seconds,
            accuracy=self.accuracy,
            variance_ratio=self.curve.variance_ratio_at(self.progress) * math.exp(VARIANCE_SCATTER * random.standard_normal()),
        )

    def _change(self) -> None:
        """Begin and end contention on workers and congestion on links, at random."""
        for present, lasts, between in ((self._busy, BUSY_WINDOWS, BUSY_FACTOR), (self._left, CONGESTED_WINDOWS, CONGESTED_SHARE)):
            drawn, factors = self._random.random(len(present)), self._random.uniform(*between, len(present))
            came = (present == 1) & (drawn < self.hosts.contention)
            went = (present != 1) & (drawn < 1 / lasts)
            present[came], present[went] = factors[came], 1.0
