"""Try the cost model's own ranking in order, and learn nothing: a designer that learns from trials has to beat it.

The rank is the predicted throughput times the probability that the candidate fits. `oppa` chooses its first trial by the same product, but
counts a configuration's own deviation as uncertainty.
"""

from collections.abc import Sequence, Set

import numpy as np

from experiments.baselines.cost_predictions import cost_predictions
from experiments.baselines.improvement import log_chance
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designer import Observation, first_free


class PriorRank:
    """Implements the designer `prior-rank`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        predicted = cost_predictions(problem, candidates)
        promise = predicted.rate + log_chance(predicted.slack)
        self._order = np.lexsort((candidates.deviations(), -promise.numpy())).tolist()  # the frameworks' defaults win ties

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the next candidate of the ranking; None if none is left."""
        return first_free(self._order, taken)

    def predict(self, candidate: int) -> None:
        """Return None, as the order alone is used."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Ignore the observations."""
