"""Compute the memory that ranks hold for micro-batches in flight; it depends on the schedule alone, not on times."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.pipeline.graph import BACKWARD, WEIGHT, Schedule


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Holds the memory of each stage for one micro-batch, shape (S,) each, in bytes or any other unit; empty means 0."""

    held: Sequence[float]
    """Memory that a forward pass leaves for the backward pass."""
    for_weights: Sequence[float] = ()
    """Memory that the weights' gradients still need after the backward pass of a split schedule."""
    working: Sequence[float] = ()
    """Extra memory of a backward pass while it runs, such as activations that it recomputes."""
    weights_working: Sequence[float] = ()
    """Extra memory of the weights' gradients of a split schedule while they are computed."""
    forward_working: Sequence[float] = ()
    """Peak memory of a forward pass while it runs, relative to its beginning."""
    gradients: Sequence[float] = ()
    """Memory that the first gradients of the weights occupy for the rest of the step."""


def memory_curves(schedule: Schedule, footprint: Footprint) -> list[NDArray[np.float64]]:
    """Return the memory that each rank holds after each of its actions."""
    change = _changes(schedule, footprint)
    return [np.cumsum(change[codes]) for codes in schedule.codes]


def peak_memory(schedule: Schedule, footprint: Footprint) -> list[float]:
    """Return the peak memory of each rank, shape (p,)."""
    change, stages = _changes(schedule, footprint), schedule.shape.stages
    working = np.zeros(len(change))
    working[:stages] = footprint.forward_working or 0.0
    working[stages : 2 * stages] = footprint.working or 0.0
    working[2 * stages :] = footprint.weights_working or 0.0
    peaks = []
    for codes in schedule.codes:
        changes = change[codes] + _gradients(schedule, footprint, codes)
        after = np.cumsum(changes)
        while_running = after - changes + working[codes]
        peaks.append(float(max(after.max(initial=0.0), while_running.max(initial=0.0))))
    return peaks


def _gradients(schedule: Schedule, footprint: Footprint, codes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the memory of gradients that each of a rank's actions allocates; only the first of its stage allocates any."""
    left = np.zeros(len(codes))
    kind, stages = WEIGHT if schedule.split else BACKWARD, schedule.shape.stages
    for stage, size in enumerate(footprint.gradients):
        (positions,) = np.nonzero(codes == kind * stages + stage)
        left[positions[:1]] = size
    return left


def _changes(schedule: Schedule, footprint: Footprint) -> NDArray[np.float64]:
    """Return the change of memory by an action of each code, shape (3 S,)."""
    held = np.asarray(footprint.held, dtype=np.float64)
    kept = np.asarray(footprint.for_weights, dtype=np.float64) if schedule.split and len(footprint.for_weights) else np.zeros(len(held))
    return np.concatenate([held, kept - held, -kept])
