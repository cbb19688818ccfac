"""The table: rows, and where they come from. On disk it is a folder with `table.csv` and `table.meta.json` (oppa/table/files.py)."""

import dataclasses
from pathlib import Path
from typing import Self

from oppa.problem.problem import Problem
from oppa.table.files import read_files, write_files
from oppa.table.origin import Hardware, Origin
from oppa.table.rows import Row, Strategy

__all__ = ["Hardware", "Origin", "Row", "Strategy", "Table"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Throughput and memory of (S, B_g, B_m); what is not in it does not fit, or was not worth a look."""

    rows: tuple[Row, ...]
    origin: Origin

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The table in a folder, as it was written; while another process writes, the one before or the one after.

        Raises:
            TableError: if there is none, it was cut short or altered, or is of another schema version.
        """
        rows, origin = read_files(folder)
        return cls(rows=rows, origin=origin)

    def write(self, folder: Path) -> None:
        """Put the table in the place of an older one, at once, and durably.

        Raises:
            TableError: if the folder cannot be written.
        """
        write_files(folder, self.rows, self.origin)

    def require_for(self, problem: Problem, *, here: Hardware | None = None) -> None:
        """Refuse to tell throughputs of another problem, another machine than `here` (this one, unless given), or other versions.

        Raises:
            TableError: names the first thing that differs, with both values.
        """
        self.origin.require_for(problem, here=here)

    def fastest(self) -> dict[tuple[Strategy, int], Row]:
        """The row with the fastest micro-batch, by strategy and global batch (COPUS appendix D); the first of equals."""
        found: dict[tuple[Strategy, int], Row] = {}
        for row in self.rows:
            key = row.strategy, row.configuration.global_batch
            if key not in found or row.steps_per_s > found[key].steps_per_s:
                found[key] = row
        return found

    @property
    def batches(self) -> list[int]:
        """Every global batch, ascending."""
        return sorted({row.configuration.global_batch for row in self.rows})
