"""Random search as OPPA does it (App. E.1): every (dp, tp, pp) triple is equally likely, then every configuration within it."""

from collections.abc import Sequence, Set

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.tuning.designer import Observation, stream


class Uniform:
    """The designer `random`. The n-th choice depends on the seed and on n alone, so a resumed study goes on as if never stopped."""

    def __init__(self, candidates: Candidates, *, seed: int) -> None:
        self._triples = candidates.triples()
        self._seed = seed

    def suggest(self, taken: Set[int]) -> int | None:
        """A free candidate of a triple drawn uniformly from those that have any."""
        free = np.ones(len(self._triples), dtype=bool)
        free[list(taken)] = False
        if not free.any():
            return None
        rng = stream(self._seed, f"random/{len(taken)}")
        triple = rng.choice(np.unique(self._triples[free]))
        return int(rng.choice(np.flatnonzero(free & (self._triples == triple))))

    def predict(self, candidate: int) -> None:
        """Chance expects nothing."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Chance learns nothing."""
