"""Draw with characters: lines of braille dots, two by four in each cell, and letters on top of them."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Unicode's bits of the dots in a cell, by column, from the bottom."""
_BRAILLE = 0x2800


@dataclasses.dataclass(slots=True)
class _Cell:
    dots: int = 0
    letter: str = ""
    style: str = ""

    @property
    def character(self) -> str:
        return self.letter or (chr(_BRAILLE + self.dots) if self.dots else " ")


class Canvas:
    """Draws on `columns` x `rows` cells. Points are in the unit square, with (0, 0) at the lower left.

    Letters are on top of dots. The first letter and the first style of a cell stay.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[_Cell() for _ in range(columns)] for _ in range(rows)]

    def line(self, points: Sequence[tuple[float, float]], style: str = "") -> None:
        """Draw straight lines from point to point; letters and earlier lines keep their style."""
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            count = max(1, round(abs(x1 - x0) * 2 * self.columns), round(abs(y1 - y0) * 4 * self.rows))
            for at in range(count + 1):
                self._dot(x0 + (x1 - x0) * at / count, y0 + (y1 - y0) * at / count, style)

    def letter(self, x: float, y: float, letter: str, style: str = "") -> None:
        """Write one character in the cell of a point, unless the cell has one."""
        cell = self._cells[self.row(y)][self.column(x)]
        if not cell.letter:
            cell.letter, cell.style = letter, style

    def rule(self, x: float, letter: str, style: str = "") -> None:
        """Fill the empty cells of a column with one character."""
        for row in self._cells:
            cell = row[self.column(x)]
            if not cell.letter and not cell.dots:
                cell.letter, cell.style = letter, style

    def column(self, x: float) -> int:
        """Return the column of cells that contains a point, counted from the left."""
        return _place(x, self.columns)

    def row(self, y: float) -> int:
        """Return the row of cells that contains a point, counted from the bottom."""
        return _place(y, self.rows)

    def lines(self) -> "list[Text]":
        """Return the lines of the drawing, from the top."""
        from rich.text import Text

        return [Text.assemble(*((cell.character, cell.style) for cell in row)) for row in reversed(self._cells)]

    def _dot(self, x: float, y: float, style: str) -> None:
        across, up = _place(x, 2 * self.columns), _place(y, 4 * self.rows)
        cell = self._cells[up // 4][across // 2]
        cell.style = cell.style if cell.dots or cell.letter else style
        cell.dots |= _DOTS[across % 2][up % 4]


def _place(part: float, count: int) -> int:
    """Return the index of the piece that contains a point, of `count` equal pieces of the unit interval."""
    return min(max(int(part * count), 0), count - 1)
