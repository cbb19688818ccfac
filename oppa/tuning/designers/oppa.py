"""OPPA: Bayesian optimisation that starts from what is known of parallel training (paper, sections 4.1 and 4.2).

Two Gaussian processes, on log throughput and on log memory, around the cost model; the constrained upper confidence bound over every
candidate that was not tried. The first trial is the best that the cost model believes to fit.
"""

import math
from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from oppa.cost.coefficients import Belief, load_beliefs
from oppa.cost.hardware import hardware_of
from oppa.cost.memory import memory, parts
from oppa.cost.step_time import step_time
from oppa.cost.workload import workload_of
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem
from oppa.study import Prediction, Trial
from oppa.study.records import VERIFICATION
from oppa.tuning.acquisition import constrained_ucb
from oppa.tuning.calibration import widening
from oppa.tuning.designer import Observation
from oppa.tuning.designers.uniform import Uniform
from oppa.tuning.surrogate.cost_model import CostModel
from oppa.tuning.surrogate.process import Data, Process

RATE_RESIDUAL, MEMORY_RESIDUAL = 0.2, 0.1
"""How far the cost model is expected to be off before it has learned anything of a job, as standard deviations of logarithms."""
RATE_NOISE, MEMORY_NOISE = 0.03, 0.005
"""How far trials of one configuration differ, likewise."""
FAILURES_IN_A_ROW = 6
"""After so many trials without a measurement, physics has failed and chance takes over for one (App. E.1)."""


def encoded(candidates: Candidates) -> Tensor:
    """The candidates in [0, 1]^p, p >= 1: a space of one candidate has a column that does not vary."""
    points = torch.from_numpy(encode(candidates))
    return points if points.shape[1] else torch.zeros((len(points), 1), dtype=torch.float64)


def fitted(problem: Problem, candidates: Candidates, trials: Sequence[Trial]) -> "Oppa":
    """The designer as it is after a study's trials."""
    designer = Oppa(problem, candidates, seed=0)
    designer.update([Observation.of(trial, candidates) for trial in trials if trial.counts and trial.purpose != VERIFICATION])
    return designer


class Oppa:
    """The designer `oppa`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int, beliefs: Mapping[str, Belief] | None = None) -> None:
        """`beliefs`: coefficients learned elsewhere, in place of those that are known of the device."""
        hardware = hardware_of(problem.cluster)
        work, points = workload_of(problem, candidates), encoded(candidates)
        known = {**hardware.coefficients, **(beliefs or {})}
        rate = CostModel(step_time, work, load_beliefs("step_time", known), sign=-1.0)
        slack = CostModel(memory, work, load_beliefs("memory", known), offset=math.log(hardware.usable_bytes))
        self.log_rate = Process(points, rate, residual=RATE_RESIDUAL, trial_noise=RATE_NOISE)
        self.log_slack = Process(points, slack, residual=MEMORY_RESIDUAL, trial_noise=MEMORY_NOISE)
        self._parts = parts(work)
        self.limit_bytes = hardware.usable_bytes
        self._beta = problem.strategy.beta
        self._chance = Uniform(candidates, seed=seed)
        self._seen: list[Observation] = []
        self._hopeless = torch.zeros(len(points), dtype=torch.bool)

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn what was measured, and which candidates need at least as much as one that ran out of memory."""
        self._seen += observations
        for seen in observations:
            if seen.outcome == "out_of_memory":
                self._hopeless |= (self._parts >= self._parts[seen.candidate] * (1 - 1e-9)).all(dim=1)
        if any(seen.log_steps_per_s is not None for seen in observations):
            self.log_rate.learn(_rates(self._seen))
        if any(map(_tells_memory, observations)):
            self.log_slack.learn(_slacks(self._seen, math.log(self.limit_bytes)))

    def suggest(self, taken: Set[int]) -> int | None:
        """The free candidate with the largest constrained upper confidence bound."""
        free = ~self._hopeless
        free[list(taken)] = False
        rows = free.nonzero()[:, 0]
        if not len(rows) or self._failing():
            return self._chance.suggest(taken | set(self._hopeless.nonzero()[:, 0].tolist()))
        if not self._seen:
            return self.most_promising(rows)
        return int(rows[constrained_ucb(self.log_rate.at(rows), self.log_slack.at(rows), beta=self._exploration()).argmax()])

    def most_promising(self, rows: Tensor) -> int:
        """Of candidates, by number: the fastest of those believed to fit; where none is, the one that needs the least memory."""
        rate, slack = self.log_rate.at(rows), self.log_slack.at(rows)
        fits = slack.mean <= 0
        return int(rows[torch.where(fits, rate.mean, -math.inf).argmax() if fits.any() else slack.mean.argmin()])

    def predict(self, candidate: int) -> Prediction:
        """The belief in what a trial of the candidate would measure."""
        rows = torch.tensor([candidate])
        rate, slack = self.log_rate.at(rows), self.log_slack.at(rows)
        return Prediction(
            steps_per_s=math.exp(rate.mean),
            log_stddev=math.hypot(rate.stddev, self.log_rate.trial_stddev) * widening(self._hits()),
            memory_bytes=round(self.limit_bytes * math.exp(slack.mean)),
            memory_log_stddev=math.hypot(slack.stddev, self.log_slack.trial_stddev),
        )

    def _exploration(self) -> float:
        return self.log_rate.bound() if self._beta is None else self._beta

    def _hits(self) -> list[bool]:
        return [o.prediction.covers(math.exp(o.log_steps_per_s)) for o in self._seen if o.prediction and o.log_steps_per_s is not None]

    def _failing(self) -> bool:
        last = self._seen[-FAILURES_IN_A_ROW:]
        return len(last) == FAILURES_IN_A_ROW and all(seen.log_steps_per_s is None for seen in last)


def _rates(observations: Sequence[Observation]) -> Data:
    seen = [o for o in observations if o.log_steps_per_s is not None]
    return Data(
        rows=torch.tensor([o.candidate for o in seen]),
        target=_column([o.log_steps_per_s or 0.0 for o in seen]),
        noise=_column([o.log_variance or 0.0 for o in seen]),
        censored=torch.zeros(len(seen), dtype=torch.bool),
    )


def _slacks(observations: Sequence[Observation], log_limit: float) -> Data:
    """log(memory / limit): at least 0 where a trial ran out of memory."""
    seen = [o for o in observations if _tells_memory(o)]
    over = [o.outcome == "out_of_memory" for o in seen]
    known = [0.0 if out else math.log(o.memory_bytes or 1) - log_limit for o, out in zip(seen, over, strict=True)]
    return Data(
        rows=torch.tensor([o.candidate for o in seen]),
        target=_column(known),
        noise=_column([0.0] * len(seen)),
        censored=torch.tensor(over),
    )


def _tells_memory(observation: Observation) -> bool:
    """It ran out of memory, or was measured: a failure of another cause may have reported a peak before it had one."""
    return observation.outcome == "out_of_memory" or bool(observation.memory_bytes and observation.log_steps_per_s is not None)


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
