"""Define the table: rows and their origin. On disk it is a folder with `table.csv` and `table.meta.json` (oppa/table/files.py)."""

import dataclasses
from pathlib import Path
from typing import Self

from oppa.problem.problem import Problem
from oppa.table.files import read_files, write_files
from oppa.table.origin import HardwareFingerprint, Origin
from oppa.table.rows import ParallelStrategy, TableRow

PROFILE = "make one: `oppa profile JOB --global-batch FIRST..LAST --table FOLDER`"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Holds throughput and memory of (S, B_g, B_m). A configuration that is missing does not fit, or was not worth a trial."""

    rows: tuple[TableRow, ...]
    origin: Origin

    @classmethod
    def read(cls, folder: str | Path, *, hint: str = PROFILE) -> Self:
        """Return the table in a folder as it was written. While another process writes, it is the table before or after that write.

        Args:
            hint: How to make the table, if there is none.

        Raises:
            TableError: if there is none, it was truncated or altered, or is of another schema version.
        """
        rows, origin = read_files(Path(folder), hint=hint)
        return cls(rows=rows, origin=origin)

    def write(self, folder: str | Path) -> None:
        """Replace the table in a folder, at once and durably.

        Raises:
            TableError: if the folder cannot be written.
        """
        write_files(Path(folder), self.rows, self.origin)

    def require_for(self, problem: Problem, *, here: HardwareFingerprint | None = None) -> None:
        """Refuse a problem, a machine or versions for whose throughputs this table does not hold.

        Args:
            here: The machine to check; this one unless given.

        Raises:
            TableError: names the first thing that differs, with both values.
        """
        self.origin.require_for(problem, here=here)

    def fastest(self) -> dict[tuple[ParallelStrategy, int], TableRow]:
        """Return the row with the fastest micro-batch, by strategy and global batch (COPUS appendix D); of equals the first."""
        found: dict[tuple[ParallelStrategy, int], TableRow] = {}
        for row in self.rows:
            key = row.strategy, row.configuration.global_batch
            if key not in found or row.steps_per_s > found[key].steps_per_s:
                found[key] = row
        return found

    @property
    def batches(self) -> list[int]:
        """Return every global batch, ascending."""
        return sorted({row.configuration.global_batch for row in self.rows})
