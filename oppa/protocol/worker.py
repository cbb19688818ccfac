"""Define the metrics that a data-parallel worker reports over a window of steps (DYNAMIX, section IV-B).

Notation (a window of k steps):
    a         accuracy of a worker's batch at each step             (k,)
    z         (a - mean of a) / standard deviation of a             (k,)
    gain      mean of the last SLIDING values of z, less the mean of the first
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

SLIDING = 5
"""Steps averaged at either end of a window to compute the gain in accuracy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """Holds the metrics of one worker over a window of steps; means over the steps unless stated otherwise."""

    local_batch: int
    """Samples of the worker in a step."""
    throughput_bytes_per_s: float
    """Bytes sent and received per second, over all network interfaces visible to the worker, or over its InfiniBand ports if more."""
    retransmissions: int
    """Total TCP segments and packets of InfiniBand retransmitted in the window."""
    cpu_ratio: float
    """Processor time divided by wall-clock time; above 1 if several cores are busy."""
    memory_share: float
    """Share of memory in use at the end of the window: of the machine's by the worker, or of the GPU's where NVML reports it."""
    compute_s: float
    """Seconds of a step until the worker's own gradients are ready."""
    wait_s: float
    """Remaining seconds of a step: waiting for other workers and averaging gradients."""
    accuracy: float
    """Accuracy on the training samples; 0 if the model's outputs are not classes."""
    accuracy_deviation: float
    """Standard deviation of the accuracy over the steps."""
    accuracy_gain: float
    """Gain in accuracy within the window, in units of `accuracy_deviation`."""
    gpu_busy: float = 0.0
    """Share of time in which the worker's GPU ran a kernel, at the end of the window; 0 without NVML."""
    nvlink_bytes_per_s: float = 0.0
    """Bytes that the worker's GPU sent and received per second over NVLink; 0 without NVML or NVLink."""

    @property
    def step_s(self) -> float:
        """Return the seconds of a whole step, which is the same for all workers that wait for each other."""
        return self.compute_s + self.wait_s

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {name: getattr(self, name) for name in self.__slots__}  # `asdict` takes ten times as long


def accuracy_gain(accuracies: Sequence[float]) -> float:
    """Return the gain in accuracy over a window, in standard deviations.

    It is 0 if the accuracy is constant or the window has at most SLIDING steps.
    """
    if len(accuracies) <= SLIDING or not (deviation := float(np.std(accuracies))):
        return 0.0
    return (statistics.fmean(accuracies[-SLIDING:]) - statistics.fmean(accuracies[:SLIDING])) / deviation
