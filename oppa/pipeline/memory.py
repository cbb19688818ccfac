"""What a rank holds of micro-batches in flight: it follows from the order alone, not from how long anything takes."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.pipeline.graph import BACKWARD, WEIGHT, Order


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of each stage for one micro-batch, shape (S,) each, in bytes or any other unit; empty: nothing."""

    held: Sequence[float]
    """What a forward pass leaves for the backward pass."""
    for_weights: Sequence[float] = ()
    """Of that, what the gradients of the weights still need after the backward pass of a split order."""
    working: Sequence[float] = ()
    """What a backward pass needs besides while it runs: activations that it computes again."""
    forward_working: Sequence[float] = ()
    """What a forward pass needs at the most, counted from where it begins."""
    gradients: Sequence[float] = ()
    """What the first gradients of the weights leave for the rest of the step."""


def memory_curves(order: Order, footprint: Footprint) -> list[NDArray[np.float64]]:
    """What each rank holds after each of its nodes."""
    change = _changes(order, footprint)
    return [np.cumsum(change[codes]) for codes in order.codes]


def peak_memory(order: Order, footprint: Footprint) -> list[float]:
    """The largest of what each rank holds, shape (p,)."""
    change, stages = _changes(order, footprint), order.shape.stages
    working = np.zeros(len(change))
    working[:stages] = footprint.forward_working or 0.0
    working[stages : 2 * stages] = footprint.working or 0.0
    peaks = []
    for codes in order.codes:
        changes = change[codes] + _gradients(order, footprint, codes)
        after = np.cumsum(changes)
        while_running = after - changes + working[codes]
        peaks.append(float(max(after.max(initial=0.0), while_running.max(initial=0.0))))
    return peaks


def _gradients(order: Order, footprint: Footprint, codes: NDArray[np.intp]) -> NDArray[np.float64]:
    """What each of a rank's nodes leaves as the first of its stage to compute gradients of weights."""
    left = np.zeros(len(codes))
    kind, stages = WEIGHT if order.split else BACKWARD, order.shape.stages
    for stage, size in enumerate(footprint.gradients):
        (positions,) = np.nonzero(codes == kind * stages + stage)
        left[positions[:1]] = size
    return left


def _changes(order: Order, footprint: Footprint) -> NDArray[np.float64]:
    """What a node adds, by code."""
    held = np.asarray(footprint.held, dtype=np.float64)
    kept = np.asarray(footprint.for_weights, dtype=np.float64) if order.split and len(footprint.for_weights) else np.zeros(len(held))
    return np.concatenate([held, kept - held, -kept])
