"""Measures two things in turn, so that a machine whose speed drifts treats both alike."""

import statistics
from collections.abc import Callable, Sequence

Measure = Callable[[], float]


def in_turn(first: Measure, second: Measure, repeats: int) -> list[tuple[float, float]]:
    """`repeats` pairs of measurements, the order reversed every time."""
    pairs = []
    for index in range(repeats):
        if index % 2 == 0:
            a, b = first(), second()
        else:
            b, a = second(), first()
        pairs.append((a, b))
    return pairs


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """`median (minimum - maximum)`."""
    return f"{statistics.median(values) * scale:.3g} ({min(values) * scale:.3g} - {max(values) * scale:.3g})"
