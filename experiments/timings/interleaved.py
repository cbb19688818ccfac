"""Measure two things alternately, so that drift in the machine's speed affects both equally."""

import statistics
from collections.abc import Callable, Sequence

Measure = Callable[[], float]


def in_turn(first: Measure, second: Measure, repeats: int) -> list[tuple[float, float]]:
    """Return `repeats` pairs of measurements; the order within a pair alternates."""
    pairs = []
    for index in range(repeats):
        if index % 2 == 0:
            a, b = first(), second()
        else:
            b, a = second(), first()
        pairs.append((a, b))
    return pairs


def compared(
    first: Measure, second: Measure, repeats: int, *, names: tuple[str, str, str], by: Callable[[float, float], float]
) -> tuple[list[tuple[str, str]], float]:
    """Measure both in turn, after a run of each, and compare each pair by a function.

    Returns:
        A row for each of the two and for the comparison, with their names; and the median of the comparison.
    """
    first(), second()
    pairs = in_turn(first, second, repeats)
    found = [by(*pair) for pair in pairs]
    return list(zip(names, map(spread, [*zip(*pairs, strict=True), found]), strict=True)), statistics.median(found)


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Format values as `median (minimum - maximum)`."""
    return f"{statistics.median(values) * scale:.3g} ({min(values) * scale:.3g} - {max(values) * scale:.3g})"
