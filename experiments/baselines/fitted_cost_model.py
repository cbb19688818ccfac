"""Choose in one shot by the paper's cost model (OPPA App. H.2 and D), with coefficients fitted to a few random trials.

The first choice after the random trials is the fastest that is predicted to fit. A search that goes on takes the next fastest, without
learning. If there are more coefficients than trials, some are not determined. The residual's last entries hold these near their start.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch import Tensor

from experiments.baselines.random_first import RANDOM_TRIALS
from oppa.cost import paper
from oppa.cost.coefficients import Coefficients
from oppa.cost.facts import workload_of
from oppa.cost.memory_limits import MemoryLimits
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation, at_random, first_free
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.designers.targets import rates, slacks
from oppa.tuning.surrogate.distributions import column
from oppa.tuning.surrogate.paper import start_of

HOLD = 0.1
"""Weight that holds a coefficient at its start, per unit of its logarithm, against errors of log throughput or log memory."""


class FittedCostModel:
    """Implements the designer `cost-model`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        torch.set_num_threads(1)
        self._work = workload_of(problem, candidates)
        self._limit = problem.cluster.usable_bytes
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seen: list[Observation] = []
        self._order: list[int] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Rank all candidates as soon as enough trials have ended; later trials change nothing."""
        for seen in observations:
            if self._order:
                return
            self._seen.append(seen)
            if not at_random(self._seen, first=RANDOM_TRIALS, failures=len(self._seen) + 1):
                self._order = self._ranked()

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a random candidate at first, then the next of the ranking."""
        return first_free(self._order, taken) if self._order else self._chance.suggest(taken)

    def predict(self, candidate: int) -> None:
        """Return None, as a least-squares fit has no estimate of its error."""

    def _ranked(self) -> list[int]:
        """Return all candidates by predicted throughput; those that are predicted not to fit come last."""
        rate, memory = paper.throughput(self._work, self._fit_rate()), paper.memory(self._work, self._fit_memory(), math.inf)
        return [int(index) for index in np.lexsort((-rate.numpy(), (memory > self._limit).numpy()))]

    def _fit_rate(self) -> Coefficients:
        seen = rates(self._seen)
        work = self._work.take(seen.rows)
        return fitted(lambda c: paper.throughput(work, c), seen.target, start_of(work, math.exp(-float(seen.target.median()))))

    def _fit_memory(self) -> Coefficients:
        """Fit memory. A trial that ran out of it counts as the limit, at which the formula is cut off (eq. 21)."""
        seen = slacks(self._seen, MemoryLimits.plain(self._limit))
        work, start = self._work.take(seen.rows), dict.fromkeys(paper.MEMORY, self._limit / len(paper.MEMORY))
        return fitted(lambda c: paper.memory(work, c, self._limit), seen.target + math.log(self._limit), start)


def fitted(formula: Callable[[Coefficients], Tensor], target: Tensor, start: Mapping[str, float]) -> Coefficients:
    """Fit positive coefficients by least squares between the formula's logarithm and the target, from their start."""

    def coefficients(shift: NDArray[np.float64]) -> Coefficients:
        return dict(zip(start, column(list(start.values())) * torch.from_numpy(shift).exp(), strict=True))

    def residual(shift: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([(formula(coefficients(shift)).log() - target).numpy(), HOLD * shift])

    return coefficients(least_squares(residual, np.zeros(len(start)), bounds=(-20, 20)).x)
