"""What a learned policy sees: of each worker what it says of itself, and what all of them share (DYNAMIX, section IV-B).

The paper's metrics, and two of our own: under synchronous training all workers' steps take as long, so each sees its own time, and its own
speed, against the mean of all. Times and sizes are logarithms and shares, so that one policy fits fast clusters and slow ones.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Situation
from oppa.control.learned.actions import Actions

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
_SAID = (
    *("throughput_bytes_per_s", "retransmissions", "cpu_ratio", "memory_share", "wait_s", "step_s"),
    *("accuracy", "accuracy_deviation", "accuracy_gain"),
)
"""What of a worker's own account is taken as it stands, or nearly so."""


def observations(situation: Situation, actions: Actions) -> Array:
    """Of each worker, shape (n, len(NAMES)); what is not known is 0."""
    workers = situation.workers
    batches = [worker.local_batch for worker in workers]
    compute = np.array([max(worker.compute_s, 1e-9) for worker in workers])
    relative_time, relative_speed = _against_mean(compute), _against_mean(np.array(batches) / compute)
    sizes = actions.size(batches)
    variance = max(0.0, situation.variance_ratio or 0.0) / sum(batches)
    said = np.array([[getattr(worker, name) for name in _SAID] for worker in workers]).T
    throughput, retransmissions, cpu_ratio, memory_share, wait_s, step_s, *accuracies = said
    step_s = np.maximum(step_s, 1e-9)
    own = (
        *(np.log10(1 + throughput), np.log1p(retransmissions), cpu_ratio, memory_share),
        *(relative_time, relative_speed, wait_s / step_s, *accuracies, np.log10(step_s)),
    )
    shared = (
        np.log1p(variance),
        np.log1p(np.sqrt(variance)),
        np.log1p(max(0.0, _mean(situation.losses))),
        _trend(situation.losses),
        situation.accuracy or 0.0,
        sizes.mean(),
        relative_time.max(),
    )
    return np.column_stack((sizes, *own, np.tile(shared, (len(workers), 1))))


def _against_mean(values: Array) -> Array:
    return np.asarray(np.log(values / values.mean()))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _trend(losses: Sequence[float]) -> float:
    """By how much the second half of a window is above the first, as a share of their mean."""
    half = len(losses) // 2
    return (_mean(losses[half:]) - _mean(losses[:half])) / mean if half and (mean := _mean(losses)) else 0.0
