"""What a data-parallel worker has to say of itself, over some steps (DYNAMIX, section IV-B).

Notation (a window of k steps):
    a         accuracy of a worker's batch, by step                 (k,)
    z         (a - mean of a) / standard deviation of a             (k,)
    gain      the mean of the last few z, less that of the first few
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

SLIDING = 5
"""Steps whose accuracies are averaged at either end of a window, for their gain."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One worker over a window of steps; means over these unless said otherwise."""

    local_batch: int
    """Samples of a step."""
    throughput_bytes_per_s: float
    """Sent and received, by all network interfaces that the worker sees."""
    retransmissions: int
    """TCP segments sent again, in all."""
    cpu_ratio: float
    """Processor time by wall-clock time; above 1 where several cores are busy."""
    memory_share: float
    """Of what the machine has, in the end."""
    compute_s: float
    """Of a step, until the worker's own gradients are there."""
    wait_s: float
    """The rest of it: for others, and for gradients to be averaged."""
    accuracy: float
    """Of what it has trained on; 0 where the model's outputs are no classes."""
    accuracy_deviation: float
    """Standard deviation from step to step."""
    accuracy_gain: float
    """How far accuracy has come within the window, in units of that deviation."""

    @property
    def step_s(self) -> float:
        """A whole step's time, which is the same for all workers that wait for each other."""
        return self.compute_s + self.wait_s

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}  # `asdict` takes ten times as long

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**values)


def accuracy_gain(accuracies: Sequence[float], sliding: int = SLIDING) -> float:
    """How far accuracy has come, in standard deviations; 0 where it did not move, or there are too few steps to tell."""
    if len(accuracies) <= sliding or not (deviation := float(np.std(accuracies))):
        return 0.0
    return (statistics.fmean(accuracies[-sliding:]) - statistics.fmean(accuracies[:sliding])) / deviation
