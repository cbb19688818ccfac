"""Implement VANILLA-BO (OPPA App. H.2): Bayesian optimisation without knowledge of parallelism, by BoTorch.

Two Gaussian processes with constant mean and Matern-5/2 model log throughput and log memory. The acquisition of `vanilla-bo` is the
constrained upper confidence bound (eq. 4), that of `vanilla-bo-cei` the logarithm of constrained expected improvement. The first trials are
random, and so is every choice after too many failures in a row (App. E.1).
"""

import functools
import math
from collections.abc import Callable, Sequence, Set

import torch
from botorch.exceptions.errors import ModelFittingError

from experiments.baselines.constant_mean import ConstantMeanGP
from experiments.baselines.improvement import log_chance, log_improvement
from experiments.baselines.random_first import RANDOM_TRIALS
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.tuning.acquisition import constrained_ucb
from oppa.tuning.designer import Observation, at_random, free, incumbent
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.surrogate.distributions import Normal, column, roomy

FAILURES_IN_A_ROW = 4
OVER_LIMIT = 0.2
"""Assumed log memory above the limit after an out-of-memory, of which only the sign is known."""

Acquisition = Callable[[Normal, Normal, float], torch.Tensor]
"""Computes the value of candidates: (log throughput, log(memory / limit), the incumbent's log throughput) -> value."""


class VanillaBO:
    """Implements the designers `vanilla-bo` and `vanilla-bo-cei`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int, acquisition: Acquisition) -> None:
        self._acquisition = acquisition
        self._x = torch.from_numpy(encode(candidates))
        self._log_limit = math.log(problem.cluster.usable_bytes)
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._observations: list[Observation] = []
        self._rate: ConstantMeanGP | None = None

    def update(self, observations: Sequence[Observation]) -> None:
        """Store what was observed; the models are fitted when a suggestion is requested."""
        self._observations += observations
        self._rate = None

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the free candidate with the largest acquisition value.

        It is a random one while choices are random, or if a fit fails.
        """
        rows = torch.from_numpy(free(len(self._x), taken))
        if self._at_random() or not len(rows):
            return self._chance.suggest(taken)
        try:
            rate, slack = self._log_rate().posterior(self._x[rows]), self._slack_at(rows)
        except ModelFittingError:  # a failed fit must not end the study
            return self._chance.suggest(taken)
        return int(rows[self._acquisition(rate, slack, self._best()).argmax()])

    def predict(self, candidate: int) -> Prediction | None:
        """Return the process's prediction; None while choices are random, or if the fit fails."""
        if self._at_random():
            return None
        try:
            belief = self._log_rate().posterior(self._x[[candidate]])
        except ModelFittingError:
            return None
        return Prediction(steps_per_s=math.exp(belief.mean), log_stddev=float(belief.stddev))

    def _at_random(self) -> bool:
        return at_random(self._observations, first=RANDOM_TRIALS, failures=FAILURES_IN_A_ROW)

    def _best(self) -> float:
        """Return the incumbent's log throughput, or the largest one if no trial ran to its end."""
        best = incumbent(self._observations)
        return best[1] if best else max(seen.log_steps_per_s for seen in self._observations if seen.log_steps_per_s is not None)

    def _log_rate(self) -> ConstantMeanGP:
        if self._rate is None:
            seen = [(o.candidate, o.log_steps_per_s, o.log_variance or 0.0) for o in self._observations if o.log_steps_per_s is not None]
            self._rate = self._fit(seen)
        return self._rate

    def _slack_at(self, rows: torch.Tensor) -> Normal:
        """Return the posterior of log(memory / limit) at candidates, by number."""
        over = [(o.candidate, OVER_LIMIT, 0.0) for o in self._observations if o.outcome == "out_of_memory"]
        fitting = [o for o in self._observations if o.outcome != "out_of_memory"]
        seen = over + [(o.candidate, math.log(o.memory_bytes) - self._log_limit, 0.0) for o in fitting if o.memory_bytes]
        return self._fit(seen).posterior(self._x[rows]) if len(seen) > 1 else roomy(len(rows))

    def _fit(self, seen: list[tuple[int, float, float]]) -> ConstantMeanGP:
        candidates, values, variances = zip(*seen, strict=True)
        return ConstantMeanGP(self._x[list(candidates)], column(values), column(variances))


def vanilla_bo(problem: Problem, candidates: Candidates, *, seed: int) -> VanillaBO:
    """Return the designer `vanilla-bo`."""
    beta = problem.search_options.beta
    if beta is None:
        raise InputError(
            "`vanilla-bo` does not support `beta = bound`", hint="write a number for `[designer] beta`, or use `--designer oppa`"
        )
    return VanillaBO(problem, candidates, seed=seed, acquisition=lambda rate, slack, best: constrained_ucb(rate, slack, beta=beta))


def log_constrained_improvement(rate: Normal, slack: Normal, best: float) -> torch.Tensor:
    """Return the logarithm of the expected improvement times the probability that the candidate fits, shape (n,)."""
    return log_improvement(rate, incumbent=best) + log_chance(slack)


vanilla_bo_cei = functools.partial(VanillaBO, acquisition=log_constrained_improvement)
"""The designer `vanilla-bo-cei`."""
