"""VANILLA-BO (OPPA App. H.2): Bayesian optimisation that knows nothing of parallelism, by BoTorch.

Two Gaussian processes with constant mean and Matern-5/2, on log throughput and on log memory, and the constrained upper confidence
bound (eq. 4). The first trials are random, and so is every choice after too many failures in a row (App. E.1).
"""

import math
from collections.abc import Sequence, Set

import torch
from botorch.exceptions.errors import ModelFittingError

from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.study import Prediction
from oppa.tuning.acquisition import constrained_ucb
from oppa.tuning.designer import Observation
from oppa.tuning.designers.uniform import Uniform
from oppa.tuning.surrogate.belief import Normal
from oppa.tuning.surrogate.constant import ConstantMeanGP

RANDOM_TRIALS = 5
FAILURES_IN_A_ROW = 4
OVER_LIMIT = 0.2
"""Log memory above the limit that an out-of-memory trial stands for: all we know is that it is more than zero."""


class VanillaBO:
    """The designer `vanilla-bo`."""

    def __init__(self, candidates: Candidates, *, memory_limit_bytes: int, seed: int, beta: float = 1.0) -> None:
        self._x = torch.from_numpy(encode(candidates))
        self._log_limit = math.log(memory_limit_bytes)
        self._beta = beta
        self._chance = Uniform(candidates, seed=seed)
        self._observations: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Keep what was observed; the models are fitted when a suggestion is asked for."""
        self._observations += observations

    def suggest(self, taken: Set[int]) -> int | None:
        """The free candidate with the largest constrained upper confidence bound."""
        free = torch.ones(len(self._x), dtype=torch.bool)
        free[list(taken)] = False
        rows = free.nonzero()[:, 0]
        if self._at_random() or not len(rows):
            return self._chance.suggest(taken)
        try:
            rate, slack = self._log_rate().posterior(self._x[rows]), self._slack_at(rows)
        except ModelFittingError:  # no model today is no reason to end the study
            return self._chance.suggest(taken)
        return int(rows[constrained_ucb(rate, slack, beta=self._beta).argmax()])

    def predict(self, candidate: int) -> Prediction | None:
        """What the process expects; nothing while choices are random."""
        if self._at_random():
            return None
        belief = self._log_rate().posterior(self._x[[candidate]])
        return Prediction(steps_per_s=math.exp(belief.mean), log_stddev=float(belief.stddev))

    def _at_random(self) -> bool:
        measured = sum(seen.log_steps_per_s is not None for seen in self._observations)
        last = self._observations[-FAILURES_IN_A_ROW:]
        failing = len(last) == FAILURES_IN_A_ROW and all(seen.log_steps_per_s is None for seen in last)
        return len(self._observations) < RANDOM_TRIALS or measured < 2 or failing

    def _log_rate(self) -> ConstantMeanGP:
        seen = [(o.candidate, o.log_steps_per_s, o.log_variance or 0.0) for o in self._observations if o.log_steps_per_s is not None]
        return self._fit(seen)

    def _slack_at(self, rows: torch.Tensor) -> Normal:
        """log(memory / limit)."""
        over = [(o.candidate, OVER_LIMIT, 0.0) for o in self._observations if o.outcome == "out_of_memory"]
        fitting = [o for o in self._observations if o.outcome != "out_of_memory"]
        seen = over + [(o.candidate, math.log(o.memory_bytes) - self._log_limit, 0.0) for o in fitting if o.memory_bytes]
        if len(seen) < 2:  # a runner that reports no memory: nothing is known to be too large
            return Normal(torch.full((len(rows),), -1.0, dtype=torch.float64), torch.full((len(rows),), 0.1, dtype=torch.float64))
        return self._fit(seen).posterior(self._x[rows])

    def _fit(self, seen: list[tuple[int, float, float]]) -> ConstantMeanGP:
        candidates, values, variances = zip(*seen, strict=True)
        y, variance = (torch.tensor(column, dtype=torch.float64) for column in (values, variances))
        return ConstantMeanGP(self._x[list(candidates)], y, variance)
