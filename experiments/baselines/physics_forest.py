"""Search by forests on the cost model's errors: the hardest opponents, each with the trees of another library.

The features of a candidate are its encoding and the cost model's predictions of time and memory. One forest learns the error of log
throughput, another that of log memory. The first trials have the largest predicted throughput times the probability that they fit; later
ones the largest constrained expected improvement. A candidate that provably needs as much as a trial that ran out of memory is never tried.

On both replayed tables, trees on the error were better after five trials than trees on log throughput itself. Without the second forest, a
wrong prediction of memory can hide the best candidates until all others were tried.

Notation (n observations, m rows, p features, t trees):
    x        features of what was observed             (n, p)
    y        measured value less its prediction        (n,)
    at       features of free candidates               (m, p)
    trees    each tree's prediction                    (t, m)
"""

import math
from collections.abc import Callable, Sequence, Set
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.baselines.cost_predictions import cost_predictions
from experiments.baselines.improvement import log_chance, log_improvement
from oppa.cost.beliefs import framework_of
from oppa.cost.facts import workload_of
from oppa.cost.memory_limits import MemoryLimits
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.trials.throughput import TRIAL_STDDEV
from oppa.tuning.designer import Observation, free, incumbent
from oppa.tuning.designers.processes import MEMORY_LAYOUT, MEMORY_RESIDUAL
from oppa.tuning.designers.pruning import Pruning
from oppa.tuning.designers.targets import rates, slacks
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.main_effects import varying_extras

Values: TypeAlias = NDArray[np.float64]
Grow = Callable[[Values, Values, Values, int], Values]
"""Fits trees: (x, y, at, seed) -> trees."""
UNEXPLAINED = math.hypot(MEMORY_LAYOUT, MEMORY_RESIDUAL)
"""Standard deviation of log memory that no coefficient explains, as `oppa` expects it."""
FIRST_TRIALS = 3
LEAST_MEASURED = 2


class PhysicsForest:
    """Implements the designers `forest-physics`, `xgboost-physics` and `smac-physics`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int, grow: Grow) -> None:
        self._predicted = cost_predictions(problem, candidates)
        unknown = varying_extras(candidates, framework_of(problem).reads(candidates.space.names))
        self._pruning = Pruning(workload_of(problem, candidates), candidates, [parameter.name for parameter in unknown])
        self._limits = MemoryLimits.plain(problem.cluster.usable_bytes)
        self._seed, self._grow = seed, grow
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Store how trials ended, and rule out what provably needs too much memory."""
        self._seen += observations
        self._pruning.learn(observations)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the candidate with the best prediction at first, then with the largest expected improvement; None if none is left."""
        rows = torch.from_numpy(free(len(self._predicted.rate), taken))
        rows = rows[~self._pruning.infeasible[rows]]
        if not len(rows):
            return None
        seed = int(stream(self._seed, f"physics-forest/{len(taken)}").integers(2**31))
        value = log_chance(self._slack(rows, seed)) + self._promise(rows, seed)
        return int(rows[value.argmax()])

    def predict(self, candidate: int) -> None:
        """Return None, as the spread of trees is no calibrated error."""

    def _promise(self, rows: Tensor, seed: int) -> Tensor:
        """Return the predicted log throughput at first, then the logarithm of its expected improvement, shape (m,)."""
        seen, predicted = rates(self._seen), self._predicted.rate
        if len(self._seen) < FIRST_TRIALS or len(seen) < LEAST_MEASURED:
            return predicted[rows]
        error, best = self._error(seen.rows, seen.target - predicted[seen.rows], rows, seed), incumbent(self._seen)
        rate = Normal(predicted[rows] + error.mean, error.stddev.clamp_min(TRIAL_STDDEV))
        return log_improvement(rate, incumbent=best[1] if best else float(seen.target.max()))

    def _slack(self, rows: Tensor, seed: int) -> Normal:
        """Return log(memory / limit). A trial that only shows a bound counts as the bound, or as its prediction if that is beyond it."""
        seen, predicted = slacks(self._seen, self._limits), self._predicted.slack
        if not len(seen):
            return Normal(predicted.mean[rows], predicted.stddev[rows])
        errors = seen.target - predicted.mean[seen.rows]
        known = torch.where(seen.side > 0, errors.clamp_min(0.0), torch.where(seen.side < 0, errors.clamp_max(0.0), errors))
        error = self._error(seen.rows, known, rows, seed)
        return Normal(predicted.mean[rows] + error.mean, error.stddev.clamp_min(UNEXPLAINED))

    def _error(self, known: Tensor, errors: Tensor, rows: Tensor, seed: int) -> Normal:
        """Return the errors of rows by the errors of what is known: mean and spread over trees."""
        points = self._predicted.points
        trees = torch.from_numpy(self._grow(points[known.numpy()], errors.numpy(), points[rows.numpy()], seed))
        return Normal(trees.mean(dim=0), trees.std(dim=0))
