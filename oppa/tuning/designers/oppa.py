"""Implement OPPA: Bayesian optimisation whose prior is a cost model of parallel training (paper, sections 4.1 and 4.2).

Two Gaussian processes around the cost model describe log throughput and log memory. Extra parameters that the cost model does not read
have a factor for each value. The acquisition is the constrained expected improvement per second (or the paper's confidence bound) over
every candidate that was not tried. The first trial has the largest expected throughput, its rate times its chance to fit.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set

import torch
from torch import Tensor

from oppa.cost.beliefs import beliefs_of_job, framework_of
from oppa.cost.coefficients import Belief
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.memory_limits import memory_limits
from oppa.cost.step_time import step_time
from oppa.cost.workload import Formula, Workload
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction, Trial
from oppa.study.records import VERIFICATION
from oppa.tuning.calibration import widening
from oppa.tuning.designer import Observation, short_of_memory, standings
from oppa.tuning.designers.choice import expected_gain, most_promising, most_valuable, probability_fits
from oppa.tuning.designers.processes import (
    MEMORY_RESIDUAL,
    PLAIN_RESIDUAL,
    RATE_RESIDUAL,
    constant,
    encoded,
    layouts,
    memory_process,
    rate_process,
)
from oppa.tuning.designers.pruning import Pruning
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.designers.targets import as_predicted, memory_trials, rates, slacks, trial_variance
from oppa.tuning.surrogate.batch_scaling import TwoParts, doubled, varies, without_batch
from oppa.tuning.surrogate.cost_model import CostModel, MeanFunction
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.main_effects import MEMORY_SPREAD, RATE_SPREAD, varying_extras, with_effects
from oppa.tuning.surrogate.model_average import ModelAverage

MODEL_WRONG = 0.1
"""Prior probability that the cost model is wrong about a job."""
MEMORY_AGAIN = 0.005
"""Standard deviation of log memory between trials of one configuration."""
TOO_LARGE = 2.3
"""Standard deviations above the limit at which a candidate's memory leaves it one chance in a hundred."""
FAILURES_IN_A_ROW = 6
"""Trials in a row that were expected to fit and measured nothing. Then choices are random until something is measured (App. E.1)."""


def fitted(problem: Problem, candidates: Candidates, trials: Sequence[Trial]) -> "Oppa":
    """Return a designer that has observed a study's trials; raises InputError if the cost model does not cover the job."""
    if problem.stated_model and not problem.has_prior:
        raise InputError(f"the objective of `{problem.name}` is in {problem.objective.unit}, which the cost model does not predict")
    designer = Oppa(problem, candidates, seed=0)
    designer.update([Observation.of(trial, candidates) for trial in trials if trial.counts and trial.purpose != VERIFICATION])
    return designer


class Oppa:
    """Implements the designer `oppa`."""

    def __init__(
        self,
        problem: Problem,
        candidates: Candidates,
        *,
        seed: int,
        beliefs: Mapping[str, Belief] | None = None,
        formula: Formula = step_time,
        memory_formula: Formula = memory,
        doubts: bool = True,
    ) -> None:
        """Build the surrogates of a problem.

        Args:
            beliefs: Coefficients learned elsewhere, which replace those of the device's prior.
            formula: Computes the seconds of a step.
            memory_formula: Computes the peak memory of a step in bytes.
            doubts: Average the cost model's predictions with those of a constant mean.
        """
        self._anew = functools.partial(
            Oppa, problem, candidates, seed=seed, beliefs=beliefs, formula=formula, memory_formula=memory_formula, doubts=doubts
        )
        time, size = beliefs_of_job(problem, beliefs)
        work, self.limits = workload_of(problem, candidates), memory_limits(problem)
        unknown = varying_extras(candidates, framework_of(problem).reads(candidates.space.names))
        encoding = without_batch(encoded(candidates), candidates) if varies(candidates) else encoded(candidates)
        cost, points = _cost_and_points(candidates, work, encoding, lambda each: CostModel(formula, each, time, sign=-1.0))
        cost = with_effects(cost, candidates, unknown, spread=RATE_SPREAD)
        self.log_rate = rate_process(problem, candidates, points, cost, residual=RATE_RESIDUAL)
        self.averaged_rate = ModelAverage((self.log_rate,), (1.0,))
        if doubts:
            plain = with_effects(constant(candidates), candidates, varying_extras(candidates), spread=RATE_SPREAD)
            other = rate_process(problem, candidates, points, plain, residual=PLAIN_RESIDUAL)
            self.averaged_rate = ModelAverage((self.log_rate, other), (1 - MODEL_WRONG, MODEL_WRONG))
        room: MeanFunction = CostModel(memory_formula, work, size, offset=math.log(self.limits.predicted))
        room = with_effects(room, candidates, unknown, spread=MEMORY_SPREAD)
        self.log_slack = memory_process(self.limits, candidates, encoding, room, residual=MEMORY_RESIDUAL)
        self.pruning = Pruning(work, candidates, [parameter.name for parameter in unknown])
        self._problem = problem
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._order = torch.from_numpy(candidates.deviations()).argsort(stable=True)
        self._seen: list[Observation] = []

    @property
    def infeasible(self) -> Tensor:
        """Return the mask of candidates that need at least as much memory as one that ran out of it, shape (N,)."""
        return self.pruning.infeasible

    @property
    def widening(self) -> float:
        """Return the factor by which intervals are widened, so that they hold the measured values as often as they should."""
        return widening(
            [o.prediction.covers(math.exp(o.log_steps_per_s)) for o in self._seen if o.prediction and o.log_steps_per_s is not None]
        )

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from what was measured, and rule out candidates that need at least as much as one that ran out of memory."""
        self._seen += observations
        self.pruning.learn(observations)
        if any(seen.measured for seen in observations):
            self.averaged_rate.learn(rates(self._seen))
        of_memory = memory_trials(self._seen)
        if any(seen in of_memory for seen in observations):
            self.log_slack.learn(slacks(self._seen, self.limits, failures=True))

    def restate(self, observations: Sequence[Observation]) -> None:
        """Learn observations in place of all earlier ones, whose rates are corrected for a drift of the machine."""
        self._seen = []
        self.update(observations)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the most valuable candidate, tried or not; None if none is left that may fit, or none fits after one ran to its end.

        Before one ran to its end, candidates that hardly can fit are tried after all others, that of the least memory first.
        """
        return self._suggest(taken, frozenset())

    def suggest_with_pending(self, running: Set[int], taken: Set[int]) -> int | None:
        """Return the most valuable candidate while others run.

        Each of these is assumed to end as predicted, so what is like it has little left to show. It is the believer of Ginsbourger, Le
        Riche and Carraro (2010, section 4.2).
        """
        believer = self._anew()
        believer.update([*self._seen, *as_predicted(self.predict, running)])
        return believer._suggest(taken, running)

    def _suggest(self, taken: Set[int], running: Set[int]) -> int | None:
        untried = ~self.infeasible
        untried[torch.tensor(list(taken), dtype=torch.long)] = False
        rows = self._order[untried[self._order]]  # the frameworks' defaults win ties
        returnable, (fitting, slack) = standings(self._seen), self._may_fit(rows)
        if len(fitting) or returnable:
            rows = fitting
        else:
            slack = self.log_slack.of_candidates(rows, bounded=True)
        if not len(rows):
            return None
        if not returnable:
            if self._is_misled():
                return self._chance.suggest(set(range(len(self.infeasible))).difference(rows.tolist()))
            slack = self._stated_slack(rows)
        return most_valuable(rows, self.averaged_rate, slack, self._seen, self._problem, running=running)

    def _may_fit(self, rows: Tensor) -> tuple[Tensor, Normal]:
        """Return the candidates whose memory leaves them a chance to fit, with their log(memory / limit).

        The widest deviations rule out most of those that are too large, so that few need the exact ones.
        """
        wide = self.log_slack.of_candidates(slice(None), bounded=True, widest=True)
        rows = rows[(wide.mean < TOO_LARGE * wide.stddev)[rows]]
        slack = self.log_slack.of_candidates(rows, bounded=True)
        may_fit = slack.mean < TOO_LARGE * slack.stddev
        return rows[may_fit], Normal(slack.mean[may_fit], slack.stddev[may_fit])

    def _stated_slack(self, rows: Tensor) -> Normal:
        """Return log(memory / stated limit) of candidates, for the first trials: the predicted memory may be too large."""
        slack = self.log_slack.of_candidates(rows)
        return Normal(slack.mean + self.limits.log_excess, slack.stddev)

    def reason_to_end(self, skipped: int) -> str:
        """Return why nothing more is suggested."""
        return short_of_memory(skipped)

    def expected_gain(self, candidate: int) -> float | None:
        """Return the share by which a trial of the candidate is expected to speed up the choice.

        None before anything ran to its end, and with the upper confidence bound, which does not choose by it.
        """
        if self._problem.search_options.acquisition == "ucb":
            return None
        slack = self.log_slack.of_candidates(torch.tensor([candidate]), bounded=True)
        return expected_gain(candidate, self.averaged_rate, slack, self._seen)

    def _is_misled(self) -> bool:
        """Return whether trials in a row measured nothing though they were expected to fit, so that the model must be wrong."""
        unexpected = 0
        for seen in self._seen:
            expected = seen.prediction is None or seen.prediction.fits(self.limits.stated)
            unexpected = 0 if seen.measured else unexpected + expected
        return unexpected >= FAILURES_IN_A_ROW

    def most_promising(self, rows: Tensor) -> int:
        """Return the candidate with the largest expected throughput, its rate times its chance to fit."""
        return most_promising(rows, self.averaged_rate.likeliest.of_candidates(rows), self.log_slack.of_candidates(rows, bounded=True))

    def fitting(self) -> Tensor:
        """Return the mask of candidates that are predicted to fit and are not ruled out, shape (N,)."""
        return (self.log_slack.at(slice(None), bounded=True).mean <= 0) & ~self.infeasible

    def reported_bytes(self) -> Tensor:
        """Return the peak memory in bytes that a trial of each candidate is predicted to report, shape (N,)."""
        return self.limits.reported * self.log_slack.at(slice(None)).mean.exp()

    def predict(self, candidate: int) -> Prediction:
        """Return the prediction for a trial of the candidate."""
        rows = torch.tensor([candidate])
        rate, peak = self.averaged_rate.likeliest.of_candidate(candidate), self.log_slack.of_candidates(rows)
        peak_bytes, peak_stddev = round(self.limits.reported * math.exp(peak.mean)), float(peak.stddev)
        probability = float(probability_fits(self.log_slack.of_candidates(rows, bounded=True)))
        if known := [seen.memory_bytes for seen in self._seen if seen.candidate == candidate and seen.measured and seen.memory_bytes]:
            peak_bytes, peak_stddev, probability = known[-1], MEMORY_AGAIN, 1.0
        return Prediction(
            steps_per_s=math.exp(rate.mean),
            log_stddev=math.hypot(rate.stddev, math.sqrt(trial_variance(self._seen))) * self.widening,
            memory_bytes=peak_bytes,
            memory_log_stddev=peak_stddev,
            probability_fits=probability,
        )


def _cost_and_points(
    candidates: Candidates, work: Workload, encoding: Tensor, model: Callable[[Workload], CostModel]
) -> tuple[MeanFunction, Tensor]:
    """Return the prior mean of log throughput, and the points of its process, shape (N, p).

    Where the batch varies, a step has a part for each micro-batch and a part of its own. A point then has the share of the latter.

    Args:
        encoding: Encoded candidates without the batch, shape (N, p).
        model: Returns the cost model of a workload.
    """
    if not varies(candidates):
        return model(work), encoding
    parts = TwoParts(model(work), model(doubled(work)), layouts(candidates))
    return parts, torch.cat([encoding, parts.prior_share()[:, None]], dim=1)
