"""Predict full-size configurations from trials at a smaller size, and choose those that are verified.

One Gaussian process holds both sizes. Its mean is the cost model at each row's own size, so that what the smaller size teaches about
coefficients holds for the full one. A coefficient that the smaller size does not exercise, such as that of a link between hosts, keeps its
prior spread. A stand-in has the encoded values and the layout of the candidate that it stands for, and a column for the size. What the cost
model misses at a stand-in is therefore expected at full size, too.

The smaller size cannot show whether hosts stall at full size. So the framework's recorded stalls are one hypothesis, and no stalls another.
The first trials at full size weigh them, as they weigh a mean that is constant.

Notation (N full-size candidates, M configurations of the proxy):
    rows       0..N-1 are full-size candidates, N..N+M-1 those of the proxy    (N + M,)
    origin     full-size candidate whose values and layout a row has          (N + M,)
    size       0 at full size, 1 at the smaller size                          (N + M,)
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oppa.cost.beliefs import Beliefs, beliefs_of_job, framework_of
from oppa.cost.coefficients import Belief, medians
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.memory_limits import memory_limits
from oppa.cost.step_time import step_time
from oppa.cost.workload import Columns, Workload
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.tuning.designer import Observation, free, short_of_memory, standings
from oppa.tuning.designers.choice import most_promising, probability_fits, value_of_new
from oppa.tuning.designers.oppa import MODEL_WRONG, TOO_LARGE
from oppa.tuning.designers.processes import (
    MEMORY_RESIDUAL,
    PLAIN_RESIDUAL,
    RATE_NUGGET,
    RATE_RESIDUAL,
    constant,
    encoded,
    memory_process,
    rate_process,
)
from oppa.tuning.designers.pruning import Pruning
from oppa.tuning.designers.targets import memory_trials, rates, slacks, trial_variance
from oppa.tuning.proxy.choice import hypotheses
from oppa.tuning.proxy.stand_ins import Proxy
from oppa.tuning.surrogate.cost_model import CostModel, MeanFunction
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.gaussian_process import Data
from oppa.tuning.surrogate.main_effects import MEMORY_SPREAD, RATE_SPREAD, varying_extras, with_effects
from oppa.tuning.surrogate.model_average import ModelAverage

VERIFIED = 3
"""Configurations that are measured at full size, the user's baseline not counted."""
ATTEMPTS = 2 * VERIFIED
"""Trials at full size after which no further one replaces one that failed, once anything was measured."""


class Upward:
    """Implements a designer at full size, which has learned from trials at a smaller size."""

    def __init__(
        self,
        problem: Problem,
        candidates: Candidates,
        proxy: Proxy,
        observations: Sequence[Observation],
        *,
        beliefs: Mapping[str, Belief] | None = None,
    ) -> None:
        """Build the surrogates of both sizes, and learn what the smaller one taught.

        Args:
            observations: Trials of the proxy's candidates.
            beliefs: Coefficients learned elsewhere.
        """
        time, size = beliefs_of_job(problem, beliefs)
        full, smaller = workload_of(problem, candidates), workload_of(proxy.problem, proxy.candidates)
        work, self._n = _joined(full, smaller), len(candidates)
        both, sizes = _both(candidates, proxy, full, time), torch.arange(len(work)) >= self._n
        points = torch.cat([encoded(both), sizes[:, None].double()], dim=1)
        physical: list[MeanFunction] = [CostModel(step_time, each, time, sign=-1.0) for each in hypotheses(work)]
        plain: MeanFunction = constant(both)
        self._limits = memory_limits(problem)
        room: MeanFunction = CostModel(memory, work, size, offset=math.log(self._limits.predicted))
        unknown = varying_extras(both, framework_of(problem).reads(both.space.names))
        physical = [with_effects(mean, both, unknown, spread=RATE_SPREAD) for mean in physical]
        plain = with_effects(plain, both, varying_extras(both), spread=RATE_SPREAD)
        room = with_effects(room, both, unknown, spread=MEMORY_SPREAD)
        means = [*((mean, RATE_RESIDUAL) for mean in physical), (plain, PLAIN_RESIDUAL)]
        self.log_rate = ModelAverage(
            [rate_process(proxy.problem, both, points, mean, residual=residual) for mean, residual in means],
            (*([(1 - MODEL_WRONG) / len(physical)] * len(physical)), MODEL_WRONG),
        )
        self.log_slack = memory_process(self._limits, both, points, room, residual=MEMORY_RESIDUAL)
        self.pruning = Pruning(work, both, [parameter.name for parameter in unknown])
        self.unseen_variance = RATE_NUGGET**2 * (problem.cluster.hosts - proxy.problem.cluster.hosts)
        """Variance of log throughput that the hosts add which the smaller size lacks: any of them may be slow."""
        self._deviations = torch.from_numpy(candidates.deviations())
        self._baseline = None if problem.baseline is None else candidates.index_of(problem.baseline)
        self._seen: list[Observation] = []
        self._learn([dataclasses.replace(seen, candidate=seen.candidate + self._n) for seen in observations])

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from trials at full size."""
        self._learn(observations)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the candidate with the largest expected throughput; after one ran at full size, the one that most likely improves on it.

        None once VERIFIED have been measured, or ATTEMPTS have ended and one was measured.
        """
        if self._is_done():
            return None
        rows = torch.from_numpy(free(self._n, taken))
        rows = rows[~self.pruning.infeasible[rows]]
        rows = rows[self._deviations[rows].argsort(stable=True)]  # the frameworks' defaults win ties
        slack = self.log_slack.of_candidates(rows, bounded=True)
        may_fit = slack.mean < TOO_LARGE * slack.stddev
        if not may_fit.any():
            return int(rows[slack.mean.argmin()]) if len(rows) else None
        rows, slack = rows[may_fit], Normal(slack.mean[may_fit], slack.stddev[may_fit])
        if not (completed := standings(seen for seen in self._seen if seen.candidate < self._n)):
            return most_promising(rows, self.log_rate.likeliest.of_candidates(rows), slack)
        noise, incumbent = trial_variance(self._seen), next(iter(completed.values()))
        return int(rows[self.log_rate.expected(lambda each: value_of_new(each.upside(rows), slack, noise, incumbent=incumbent)).argmax()])

    def _is_done(self) -> bool:
        """Return whether enough candidates were measured at full size, or too many failed."""
        tried = [seen for seen in self._seen if seen.candidate < self._n and seen.candidate != self._baseline]
        measured = sum(seen.measured for seen in tried)
        return measured >= VERIFIED or (measured > 0 and len(tried) >= ATTEMPTS)

    def reason_to_end(self, skipped: int) -> str:
        """Return why nothing more is suggested."""
        if not self._is_done():
            return short_of_memory(skipped)
        return f"[proxy] measures at most {VERIFIED} configurations at full size, besides the baseline"

    def of_candidates(self, rows: Tensor | slice = slice(None)) -> tuple[Normal, Normal]:
        """Return the posterior of log throughput and of log(memory / limit), to compare with 0, of full-size candidates, by number."""
        rows = torch.arange(self._n)[rows]
        rate = self.log_rate.likeliest.of_candidates(rows)
        return Normal(rate.mean, (rate.stddev.square() + self.unseen_variance).sqrt()), self.log_slack.of_candidates(rows, bounded=True)

    def predict(self, candidate: int) -> Prediction:
        """Return the prediction for a trial of a full-size candidate."""
        numbers, rows = torch.tensor([candidate]), self.log_rate.observed == candidate
        (rate, slack), peak = self.of_candidates(numbers), self.log_slack.of_candidates(numbers)
        if rows.any():
            known = self.log_rate.likeliest.of_candidate(candidate)
            rate = Normal(known.mean, known.stddev)
        return Prediction(
            steps_per_s=math.exp(rate.mean),
            log_stddev=math.hypot(rate.stddev, math.sqrt(trial_variance(self._seen))),
            memory_bytes=round(self._limits.reported * math.exp(peak.mean)),
            memory_log_stddev=float(peak.stddev),
            probability_fits=float(probability_fits(slack)),
        )

    def _learn(self, observations: Sequence[Observation]) -> None:
        self._seen += observations
        self.pruning.learn(observations)
        if any(seen.measured for seen in observations):
            self.log_rate.learn(self._rates())
        of_memory = memory_trials(self._seen)
        if any(seen in of_memory for seen in observations):
            self.log_slack.learn(slacks(self._seen, self._limits, failures=True))

    def _rates(self) -> Data:
        """Return the measured log throughputs; a full-size one has the variance of the hosts that the smaller size lacks."""
        data = rates(self._seen)
        return dataclasses.replace(data, noise=data.noise + self.unseen_variance * (data.rows < self._n))


def _both(candidates: Candidates, proxy: Proxy, full: Workload, time: Beliefs) -> Candidates:
    """Return the candidates of both sizes, in which each of the proxy's has the values of one that it stands for.

    That one is the fastest by the prior, as no other is likelier to be verified.
    """
    order = np.argsort(step_time(full, medians(time)).numpy(), kind="stable")
    origin: NDArray[np.intp] = np.zeros(len(proxy.candidates), dtype=np.intp)
    for index in order[::-1]:  # the fastest is written last
        if proxy.stand_in[index] >= 0:
            origin[proxy.stand_in[index]] = index
    codes = {name: np.concatenate([column, column[origin]]) for name, column in candidates.codes.items()}
    return dataclasses.replace(candidates, codes=codes)


def _joined(first: Workload, second: Workload) -> Workload:
    """Return the rows of two workloads, one after the other."""

    def both(name: str) -> Columns:
        above: Columns = getattr(first, name)
        below: Columns = getattr(second, name)
        fields = [field.name for field in dataclasses.fields(above)]
        return dataclasses.replace(above, **{field: torch.cat([getattr(above, field), getattr(below, field)]) for field in fields})

    return Workload(**{field.name: both(field.name) for field in dataclasses.fields(first)})  # type: ignore[arg-type]
