"""Search at random, as OPPA does (App. E.1): every (dp, tp, pp) triple is equally likely, then every configuration within it."""

from collections.abc import Sequence, Set

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.tuning.designer import Observation, free


class RandomSearch:
    """Implements the designer `random`. The n-th choice depends on the seed and n alone, so a resumed study goes on as if never stopped."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        self._triples = candidates.triples()
        self._seed = seed

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a free candidate of a triple drawn uniformly from those that have any; None if none is free."""
        rows = free(len(self._triples), taken)
        if not len(rows):
            return None
        rng, triples = stream(self._seed, f"random/{len(taken)}"), self._triples[rows]
        return int(rng.choice(rows[triples == rng.choice(np.unique(triples))]))

    def predict(self, candidate: int) -> None:
        """Return None, as random search has no model."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Ignore the observations, as random search has no model."""
