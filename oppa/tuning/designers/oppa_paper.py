"""Implement OPPA as the paper describes it, for comparison: Appendices D to G (Algorithm 3).

Throughput and memory are modelled on linear scales, with the prior means of equations 10 to 21. Their coefficients are found by marginal
likelihood. The first trials are random. An out-of-memory trial is an observation of exactly the limit.

Two details follow our reading of the paper. There are four random trials: five, less the one that Algorithm 3's `i < N_random` drops. The
unit of the sigmoid is 5% of the limit.
"""

import math
from collections.abc import Sequence, Set

import torch
from botorch.exceptions.errors import ModelFittingError
from torch import Tensor

from oppa.cost import paper
from oppa.cost.facts import workload_of
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.trials.throughput import paper_estimate, settled
from oppa.tuning.acquisition import bound, constrained_ucb_sampled
from oppa.tuning.designer import Observation, at_random, free
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.surrogate.distributions import Normal, column, roomy
from oppa.tuning.surrogate.paper import PaperProcess, PriorMean, start_of
from oppa.tuning.surrogate.threads import use_one_thread

RANDOM = 5
FAILURES_IN_A_ROW = 4
UNIT = 0.05
VAGUE = 10.0
"""Largest predicted standard deviation, in log units: a linear process may expect a throughput of almost 0."""
JITTER = 1e-4
"""The value of lambda in equations 26 and 27, in units of the limit squared."""


class OppaPaper:
    """Implements the designer `oppa-paper`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        use_one_thread()
        self._work, self._points = workload_of(problem, candidates), torch.from_numpy(encode(candidates))
        self._limit = float(problem.cluster.usable_bytes)
        self._settle = problem.limits.settle
        self._beta = problem.search_options.beta
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seen: list[Observation] = []
        self._rate: PaperProcess | None = None
        self._memory: PaperProcess | None = None
        self._scale = 1.0

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from trials that ended; the models are fitted anew."""
        self._seen += observations
        if not self._at_random():
            try:
                self._rate, self._memory = self._fit_rate(), self._fit_memory()
            except ModelFittingError:  # a failed fit must not end the study
                self._rate = None

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a random candidate at first and after too many failures, else the free one with the largest bound."""
        rows = torch.from_numpy(free(len(self._points), taken))
        if self._at_random() or self._rate is None or not len(rows):
            return self._chance.suggest(taken)
        beta = bound(self._rate.log_determinant, self._rate.noise) if self._beta is None else self._beta
        value = constrained_ucb_sampled(self._rate.at(rows), self._slack_at(rows), beta=beta, temperature=UNIT)
        return int(rows[value.argmax()])

    def predict(self, candidate: int) -> Prediction | None:
        """Return the process's prediction; None while choices are random, without a fit, or if it predicts no positive throughput."""
        if self._at_random() or self._rate is None:
            return None
        belief = self._rate.at(torch.tensor([candidate]))
        mean, stddev = float(belief.mean), float(belief.stddev)
        return Prediction(steps_per_s=mean * self._scale, log_stddev=min(stddev / mean, VAGUE)) if 0 < mean < math.inf else None

    def _at_random(self) -> bool:
        return at_random(self._seen, first=RANDOM - 1, failures=FAILURES_IN_A_ROW)

    def _fit_rate(self) -> PaperProcess:
        seen = [(o.candidate, paper_estimate(settled(o.step_times_s, self._settle))) for o in self._seen if o.measured]
        rows = torch.tensor([candidate for candidate, _ in seen])
        rate = column([each.steps_per_s for _, each in seen])
        self._scale = float(rate.max())
        variance = (column([each.variance for _, each in seen]) / self._scale**2).clamp_min(1e-6)  # gpytorch warns about less
        starts = start_of(self._work.take(rows), float(1 / rate.median()))
        return PaperProcess(self._points, PriorMean(paper.throughput, self._work, starts, self._scale), rows, rate / self._scale, variance)

    def _slack_at(self, rows: Tensor) -> Normal:
        """Return (memory - limit) / limit at candidates, by number."""
        if self._memory is None:
            return roomy(len(rows))
        memory = self._memory.at(rows)
        return Normal(memory.mean - 1.0, memory.stddev)

    def _fit_memory(self) -> PaperProcess | None:
        seen = [o for o in self._seen if o.outcome == "out_of_memory" or o.memory_bytes]
        if not seen:
            return None
        used = [self._limit if o.outcome == "out_of_memory" else float(o.memory_bytes or 0) for o in seen]
        starts = dict.fromkeys(paper.MEMORY, self._limit / len(paper.MEMORY))
        mean = PriorMean(lambda work, c: paper.memory(work, c, self._limit), self._work, starts, self._limit)
        rows, target = torch.tensor([o.candidate for o in seen]), column(used) / self._limit
        return PaperProcess(self._points, mean, rows, target, torch.full_like(target, JITTER))
