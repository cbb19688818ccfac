"""Implement `oppa` without its prior: a constant replaces the cost model, and memory has no prior.

It is what `oppa` does for a program whose model is not stated, and for an objective other than throughput. Else it is an ablation.
The processes, the acquisition and beta are those of `oppa`. The constant is uncertain by many orders of magnitude. As nothing else
explains them, the residual is as wide as the throughputs and memories of one job differ. Choices are random at first and after too many
failures in a row.
"""

import functools
import math
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from oppa.cost.memory_limits import memory_limits
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.tuning.designer import Observation, at_random, free
from oppa.tuning.designers.choice import most_valuable
from oppa.tuning.designers.oppa import FAILURES_IN_A_ROW
from oppa.tuning.designers.processes import PLAIN_RESIDUAL, constant, encoded, memory_process, rate_process
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.designers.targets import as_predicted, rates, slacks, tells_memory, trial_variance
from oppa.tuning.surrogate.main_effects import MEMORY_SPREAD, RATE_SPREAD, MainEffects, varying, varying_extras
from oppa.tuning.surrogate.model_average import ModelAverage

BEYOND_EFFECTS = 0.15
"""Expected distance between candidates of a job without a prior, where each value of a parameter has an effect of its own."""


class WithoutPrior:
    """Implements the designer `oppa-no-prior`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        self._anew = functools.partial(WithoutPrior, problem, candidates, seed=seed)
        points = encoded(candidates)
        self._limits = memory_limits(problem)
        residual = PLAIN_RESIDUAL if problem.has_prior else BEYOND_EFFECTS
        unknown = varying_extras(candidates) if problem.has_prior else varying(candidates)
        rate, memory = (MainEffects(constant(candidates), candidates, unknown, spread=spread) for spread in (RATE_SPREAD, MEMORY_SPREAD))
        self.log_rate = rate_process(problem, candidates, points, rate, residual=residual)
        self.log_slack = memory_process(self._limits, candidates, points, memory, residual=residual)
        self._problem = problem
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from what was measured."""
        self._seen += observations
        if any(seen.measured for seen in observations):
            self.log_rate.learn(rates(self._seen))
        if any(map(tells_memory, observations)):
            self.log_slack.learn(slacks(self._seen, self._limits))

    def restate(self, observations: Sequence[Observation]) -> None:
        """Learn observations in place of all earlier ones, whose rates are corrected for a drift of the machine."""
        self._seen = []
        self.update(observations)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a random candidate at first, then the most valuable one, as `oppa` does."""
        return self._suggest(taken, frozenset())

    def suggest_with_pending(self, running: Set[int], taken: Set[int]) -> int | None:
        """Return a random candidate at first, then the most valuable one while others run, as `oppa` does."""
        believer = self._anew()
        believer.update([*self._seen, *as_predicted(self.predict, running)])
        return believer._suggest(taken, running)

    def _suggest(self, taken: Set[int], running: Set[int]) -> int | None:
        rows = torch.from_numpy(free(len(self.log_rate.points), taken))
        if not len(rows) or self._at_random():
            return self._chance.suggest(taken)
        slack = self.log_slack.of_candidates(rows, bounded=True)
        return most_valuable(rows, ModelAverage((self.log_rate,), (1.0,)), slack, self._seen, self._problem, running=running)

    def most_promising(self, rows: Tensor) -> int:
        """Return the candidate with the largest expected throughput, or objective."""
        return int(rows[self.log_rate.of_candidates(rows).mean.argmax()])

    def predict(self, candidate: int) -> Prediction | None:
        """Return the process's prediction; None while choices are random."""
        if self._at_random():
            return None
        belief = self.log_rate.of_candidate(candidate)
        return Prediction(steps_per_s=math.exp(belief.mean), log_stddev=math.hypot(belief.stddev, math.sqrt(trial_variance(self._seen))))

    def _at_random(self) -> bool:
        return at_random(self._seen, first=1, failures=FAILURES_IN_A_ROW)
