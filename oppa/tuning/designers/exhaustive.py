"""Search exhaustively: every candidate, in the order of the space."""

from collections.abc import Sequence, Set

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation, first_free


class Exhaustive:
    """Implements the designer `exhaustive`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        self._size = len(candidates)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the first free candidate; None if there is none."""
        return first_free(range(self._size), taken)

    def predict(self, candidate: int) -> None:
        """Return None, as a fixed order predicts nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Ignore the observations, as the order is fixed."""
