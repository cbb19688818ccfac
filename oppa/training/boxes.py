"""Boxes: which part of a tensor, as a range of indices along each dimension.

    rows 2 and 3 of all columns of a tensor of shape (4, 6):  (range(2, 4), range(6))

A tensor without dimensions has one box, `()`, of one element.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

Box = tuple[range, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A box of the whole tensor called `name`, whichever layout holds it."""

    name: str
    shape: tuple[int, ...]
    box: Box

    @classmethod
    def of(cls, name: str, shape: Sequence[int], dim: int = 0, part: range | None = None) -> "Piece":
        """All of it, but along dimension `dim`, should there be such a one, only this part."""
        whole = tuple(range(length) for length in shape)
        return cls(name, tuple(shape), whole if part is None else tuple(part if axis == dim else all for axis, all in enumerate(whole)))


def elements(box: Box) -> int:
    """How many."""
    return math.prod(len(indices) for indices in box)


def common(one: Box, other: Box) -> Box | None:
    """The elements in both; None where there are none."""
    both = tuple(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return both if all(both) else None


def inside(box: Box, outer: Box) -> bool:
    """Whether `outer` has all of `box`."""
    return all(a.start <= b.start and b.stop <= a.stop for a, b in zip(outer, box, strict=True))


def index(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where `box` lies in a tensor that holds just `outer`."""
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(outer, box, strict=True))


def rows_of(box: Box, most: int) -> list[Box]:
    """A box in parts of no more than so many elements each, but a row at least."""
    if not box or elements(box) <= most:
        return [box]
    first, *others = box
    height = max(1, most // elements(tuple(others)))
    return [(first[start : start + height], *others) for start in range(0, len(first), height)]


@functools.cache
def cells(boxes: frozenset[Box]) -> tuple[Box, ...]:
    """What comes of cutting all of them along every edge of any: disjoint, each inside every box that it touches, in order."""
    edges = [sorted({edge for indices in axis for edge in (indices.start, indices.stop)}) for axis in zip(*boxes, strict=True)]
    lattice = itertools.product(*([range(*pair) for pair in itertools.pairwise(axis)] for axis in edges))
    return tuple(cell for cell in lattice if any(inside(cell, box) for box in boxes))
