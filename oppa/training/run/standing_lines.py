"""Read the valid lines of a long ledger anew at each use, so that memory does not grow with the length of a run."""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from oppa.training.run import ledger
from oppa.training.run.ledger import Line

KEPT_BYTES = 16 << 20
"""Largest ledger whose lines are kept: about 30,000 steps, which take 100 MiB."""


class StandingLines(Sequence[Line]):
    """Reads the lines that `ledger.standing` returns, up to the present end of the ledger. An iteration over a long one keeps none.

    Args:
        folder: Folder of the run.

    Raises:
        CheckpointError: the ledger is damaged. A line of a step in a long ledger raises it when it is read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, ledger.size(folder)
        events = ledger.lines(folder, end=self._end, steps=False)
        starts = [line["step"] for line in events if line["event"] == ledger.STARTED]
        self._limits = list(itertools.accumulate([math.inf, *reversed(starts)], min))[::-1]
        """Step from which on lines are void, as a later attempt began there: for the lines before the first start, and after each start."""
        self._kept = list(self._read()) if self._end <= KEPT_BYTES else None

    def __iter__(self) -> Iterator[Line]:
        """Iterate over the lines, oldest first."""
        return iter(self._kept) if self._kept is not None else self._read()

    def _read(self) -> Iterator[Line]:
        limits = iter(self._limits)
        limit = next(limits)
        for line in ledger.lines(self._folder, end=self._end):
            if line["event"] == ledger.STARTED:
                limit = next(limits)
                yield line
            elif limit == math.inf or line["step"] < limit:
                yield line

    def __len__(self) -> int:
        """Return the number of lines, which takes a pass over all of them."""
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        """Return a line, or some lines."""
        return list(self)[index]
