"""What a rank holds of micro-batches in flight: it follows from the order alone, not from how long anything takes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.pipeline.graph import Order


def memory_curves(order: Order, held: Sequence[float], for_weights: Sequence[float] = ()) -> list[NDArray[np.float64]]:
    """What each rank holds after each of its nodes.

    Args:
        order: What the ranks do.
        held: What a forward pass of each stage leaves for the backward pass, shape (S,), in bytes or any other unit.
        for_weights: Of that, what the gradients of the weights still need after the backward pass of a split order, shape (S,).
    """
    kept = np.asarray(for_weights if order.split and len(for_weights) else [0.0] * len(held), dtype=np.float64)
    change = np.concatenate([held, kept - held, -kept])
    return [np.cumsum(change[codes]) for codes in order.codes]


def peak_memory(order: Order, held: Sequence[float], for_weights: Sequence[float] = ()) -> list[float]:
    """The largest of what each rank holds, shape (p,), as `memory_curves`."""
    return [float(curve.max(initial=0.0)) for curve in memory_curves(order, held, for_weights)]
