"""Describe parts of tensors as boxes; a box is a range of indices along each dimension.

    rows 2 and 3, all columns, of a tensor of shape (4, 6):  (range(2, 4), range(6))

A tensor without dimensions has one box, `()`, with one element.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence

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


def cells(boxes: Collection[Box]) -> dict[Box, list[Box]]:
    """Cut all boxes along every edge of any of them, and return the resulting cells in order, each with the boxes that contain it.

    The cells are disjoint; each is inside every box that it intersects. A cell is compared with the boxes of its rows alone.
    """
    if () in boxes:
        return {(): [()]}
    edges = [sorted({edge for indices in axis for edge in (indices.start, indices.stop)}) for axis in zip(*boxes, strict=True)]
    rows, *others = ([range(*pair) for pair in itertools.pairwise(axis)] for axis in edges)
    with_rows: dict[range, list[Box]] = {row: [] for row in rows}
    numbers = {edge: number for number, edge in enumerate(edges[0])}
    for box in boxes:
        for row in rows[numbers[box[0].start] : numbers[box[0].stop]]:
            with_rows[row].append(box)
    lattice = ((row, *rest) for row in rows for rest in itertools.product(*others))
    around = {cell: [box for box in with_rows[cell[0]] if inside(cell, box)] for cell in lattice}
    return {cell: found for cell, found in around.items() if found}
