"""Compute the observation of a learned policy: each worker's own metrics and metrics common to all (DYNAMIX, section IV-B).

They are the paper's metrics and two more: each worker's own compute time and speed relative to the mean of all workers. Under synchronous
training, all workers' steps take equally long. Times and sizes are logarithms or ratios, so that one policy fits fast and slow clusters.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import JobState
from oppa.control.rl.actions import Actions

Array = NDArray[np.float64]

OWN = (
    "size",
    "throughput",
    "retransmissions",
    "cpu_ratio",
    "memory_share",
    "time_against_mean",
    "speed_against_mean",
    "wait_share",
    "accuracy",
    "accuracy_deviation",
    "accuracy_gain",
    "step_time",
)
SHARED = ("gradient_variance", "gradient_deviation", "loss", "loss_trend", "validation_accuracy", "mean_size", "slowest_time")
NAMES = (*OWN, *SHARED)
_REPORTED = (
    *("throughput_bytes_per_s", "retransmissions", "cpu_ratio", "memory_share", "wait_s", "step_s"),
    *("accuracy", "accuracy_deviation", "accuracy_gain"),
)
"""Attributes of WorkerState that are used unchanged or after a simple transform."""


def observations(state: JobState, actions: Actions) -> Array:
    """Return the observation of each worker, shape (n, len(NAMES)); unknown values are 0."""
    workers = state.workers
    batches = [worker.local_batch for worker in workers]
    compute = np.array([max(worker.compute_s, 1e-9) for worker in workers])
    relative_time, relative_speed = _against_mean(compute), _against_mean(np.array(batches) / compute)
    sizes = actions.size(batches)
    variance = max(0.0, state.variance_ratio or 0.0) / sum(batches)
    reported = np.array([[getattr(worker, name) for name in _REPORTED] for worker in workers]).T
    throughput, retransmissions, cpu_ratio, memory_share, wait_s, step_s, *accuracies = reported
    step_s = np.maximum(step_s, 1e-9)
    own = (
        *(np.log10(1 + throughput), np.log1p(retransmissions), cpu_ratio, memory_share),
        *(relative_time, relative_speed, wait_s / step_s, *accuracies, np.log10(step_s)),
    )
    shared = (
        np.log1p(variance),
        np.log1p(np.sqrt(variance)),
        np.log1p(max(0.0, _mean(state.losses))),
        _trend(state.losses),
        state.accuracy or 0.0,
        sizes.mean(),
        relative_time.max(),
    )
    return np.column_stack((sizes, *own, np.tile(shared, (len(workers), 1))))


def _against_mean(values: Array) -> Array:
    return np.asarray(np.log(values / values.mean()))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _trend(losses: Sequence[float]) -> float:
    """Return the mean loss of the window's second half less that of the first, relative to the mean of the window."""
    half = len(losses) // 2
    return (_mean(losses[half:]) - _mean(losses[:half])) / mean if half and (mean := _mean(losses)) else 0.0
