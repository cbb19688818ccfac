"""Describe parts of tensors as boxes; a box is a range of indices along each dimension.

    rows 2 and 3, all columns, of a tensor of shape (4, 6):  (range(2, 4), range(6))

A tensor without dimensions has one box, `()`, with one element.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

Box = tuple[range, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Describes a box of the whole tensor `name`, independent of layouts."""

    name: str
    shape: tuple[int, ...]
    box: Box

    @classmethod
    def of(cls, name: str, shape: Sequence[int], dim: int = 0, part: range | None = None) -> "Piece":
        """Return the piece that has only `part` along dimension `dim`, and all of the others; without `part` or `dim`, the whole tensor."""
        whole = tuple(range(length) for length in shape)
        return cls(name, tuple(shape), whole if part is None else tuple(part if axis == dim else all for axis, all in enumerate(whole)))


def elements(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(len(indices) for indices in box)


def common(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    both = tuple(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return both if all(both) else None


def inside(box: Box, outer: Box) -> bool:
    """Return whether `outer` contains `box`."""
    return all(a.start <= b.start and b.stop <= a.stop for a, b in zip(outer, box, strict=True))


def index(box: Box, outer: Box) -> tuple[slice, ...]:
    """Return the slices of `box` in a tensor that holds exactly `outer`."""
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(outer, box, strict=True))


def rows_of(box: Box, most: int) -> list[Box]:
    """Split a box by rows into boxes of at most `most` elements, but of at least one row."""
    if not box or elements(box) <= most:
        return [box]
    first, *others = box
    height = max(1, most // elements(tuple(others)))
    return [(first[start : start + height], *others) for start in range(0, len(first), height)]


@functools.cache
def cells(boxes: frozenset[Box]) -> tuple[Box, ...]:
    """Cut all boxes along every edge of any of them, and return the resulting cells in order.

    The cells are disjoint; each is inside every box that it intersects.
    """
    edges = [sorted({edge for indices in axis for edge in (indices.start, indices.stop)}) for axis in zip(*boxes, strict=True)]
    lattice = itertools.product(*([range(*pair) for pair in itertools.pairwise(axis)] for axis in edges))
    return tuple(cell for cell in lattice if any(inside(cell, box) for box in boxes))
