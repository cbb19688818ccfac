"""Share what designers have in common that wrap a library: random first trials, then one suggestion of the library at a time."""

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.tuning.designer import Observation, at_random, free
from oppa.tuning.designers.random_search import RandomSearch

RANDOM_TRIALS = 5
"""Number of random first trials, the same for all of them."""


class RandomFirst:
    """Suggests at random until enough trials have ended and two have measured something, then calls `_choose`."""

    stream: str
    """Name of the designer's random stream."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        self._size, self._seed = len(candidates), seed
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Store how trials ended; models are fitted when a suggestion is requested."""
        self._seen += observations

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a random candidate at first, then the library's choice; None if none is free.

        The choice depends on the trials and on the seed alone, so a resumed search goes on as if it had never stopped.
        """
        rows = free(self._size, taken)
        if not len(rows) or at_random(self._seen, first=RANDOM_TRIALS, failures=len(self._seen) + 1):
            return self._chance.suggest(taken)
        return self._choose(rows, taken, stream(self._seed, f"{self.stream}/{len(taken)}"))

    def predict(self, candidate: int) -> None:
        """Return None, as a choice is no prediction of throughput."""

    def _choose(self, rows: NDArray[np.int64], taken: Set[int], rng: np.random.Generator) -> int | None:
        """Return the next candidate to try, one of the free `rows`."""
        raise NotImplementedError

    def _shares(self) -> NDArray[np.float64]:
        """Return the throughput of each trial so far as a share of the best, shape (n,); 0 for a failure."""
        rates = np.exp([-np.inf if seen.log_steps_per_s is None else seen.log_steps_per_s for seen in self._seen])
        return np.asarray(rates / rates.max())
