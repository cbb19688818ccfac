"""Exhaustive search: every candidate, in the order of the space."""

from collections.abc import Sequence, Set

from oppa.problem.candidates import Candidates
from oppa.tuning.designer import Observation


class Grid:
    """The designer `grid`."""

    def __init__(self, candidates: Candidates) -> None:
        self._size = len(candidates)

    def suggest(self, taken: Set[int]) -> int | None:
        """The first candidate that is free."""
        return next((index for index in range(self._size) if index not in taken), None)

    def predict(self, candidate: int) -> None:
        """A grid expects nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """A grid learns nothing."""
