"""Implements OPPA: Bayesian optimisation whose prior is a cost model of parallel training (paper, sections 4.1 and 4.2).

Two Gaussian processes around the cost model describe log throughput and log memory. Extra parameters, of which the cost model knows
nothing, have a factor for each value. The acquisition is the constrained expected improvement (or the paper's upper confidence bound) over
every candidate that was not tried. The first trial is the best candidate that the cost model predicts to fit.
"""

import math
from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.coefficients import Belief
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.step_time import step_time
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem
from oppa.problem.training import SearchOptions
from oppa.study import Prediction, Trial
from oppa.study.records import VERIFICATION
from oppa.tuning.acquisition import bound, constrained_improvement, constrained_ucb, learned, value_of_repeats
from oppa.tuning.calibration import widening
from oppa.tuning.designer import Observation, failing, free, groups, standings
from oppa.tuning.designers.pruning import Pruning
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.designers.targets import rates, slacks, tells_memory, trial_variance
from oppa.tuning.surrogate.batch_scaling import TwoParts, doubled, varies, without_batch
from oppa.tuning.surrogate.cost_model import CostModel, Formula, MeanFunction
from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.gaussian_process import GaussianProcess
from oppa.tuning.surrogate.main_effects import MEMORY_SPREAD, RATE_SPREAD, MainEffects, varying_extras

LAYOUT = ("dp", "tp", "pp", "ep", "zero_stage")
"""Parameters that decide which ranks communicate. An error of the cost model is shared by all configurations with these values."""
RATE_LAYOUT, MEMORY_LAYOUT = 0.15, 0.07
RATE_RESIDUAL, MEMORY_RESIDUAL = 0.13, 0.07
"""Expected errors of the cost model before any trial of a job, as standard deviations of logarithms: for a whole layout, and
as the other parameters vary.
"""
RATE_NUGGET, MEMORY_NUGGET = 0.05, 0.05
"""Expected nuggets, as standard deviations of logarithms: the distance of a configuration from what all others predict. Nuggets of
throughput add up over hosts, each of which may be the slow one: the variance is this for each host.
"""
MEMORY_AGAIN = 0.005
"""Standard deviation of log memory between trials of one configuration."""
DOUBT, DOUBTED_STDDEV = 0.1, 0.15
"""Probability that no model explains a configuration's memory, and the standard deviation of its log memory then."""
WORTH_A_REPEAT = 1e-3
"""Smallest gain, as a share of throughput, for which a trial is repeated. It makes a search without a budget end."""
FAILURES_IN_A_ROW = 6
"""Trials in a row without a measurement after which choices are random until something is measured (App. E.1)."""


def encoded(candidates: Candidates) -> Tensor:
    """Return the candidates in [0, 1]^p, p >= 1. A space of one candidate gets a column that does not vary."""
    points = torch.from_numpy(encode(candidates))
    return points if points.shape[1] else torch.zeros((len(points), 1), dtype=torch.float64)


def fitted(problem: Problem, candidates: Candidates, trials: Sequence[Trial]) -> "Oppa":
    """Return a designer that has observed a study's trials; raises InputError if the cost model says nothing about the job."""
    if problem.stated_model and not problem.has_prior:
        raise InputError(f"the objective of `{problem.name}` is in {problem.objective.unit}, of which the cost model knows nothing")
    designer = Oppa(problem, candidates, seed=0)
    designer.update([Observation.of(trial, candidates) for trial in trials if trial.counts and trial.purpose != VERIFICATION])
    return designer


def most_valuable(
    rows: Tensor, log_rate: GaussianProcess, log_slack: GaussianProcess, seen: Sequence[Observation], strategy: SearchOptions
) -> int:
    """Return the candidate whose trial is worth most: one of the untried `rows`, or a measured one to repeat.

    The value is by how much a trial is expected to speed up the choice after it, compared with the choice now. With `acquisition = "ucb"`,
    and before anything ran to its end, it is the paper's bound.
    """
    rate, slack, returnable = log_rate.of_candidates(rows), log_slack.of_candidates(rows), standings(seen)
    if strategy.acquisition == "ucb" or not returnable:
        beta = bound(log_rate.log_determinant, log_rate.noise) if strategy.beta is None else strategy.beta
        return int(rows[constrained_ucb(rate, slack, beta=beta).argmax()])
    noise, known = trial_variance(seen), log_rate.of_observed()
    contending = torch.tensor([candidate in returnable for candidate in log_rate.observed.tolist()])
    known = Normal(known.mean[contending], known.stddev[contending])
    again = value_of_repeats(known, noise)
    new = value_of_new(rate, slack, noise, incumbent=float(known.mean.max()))
    if again.max() > max(WORTH_A_REPEAT, float(new.max())):
        return int(log_rate.observed[contending][again.argmax()])
    return int(rows[new.argmax()])


def value_of_new(rate: Normal, slack: Normal, noise: float, *, incumbent: float) -> Tensor:
    """Return by how much a trial of each untried candidate is expected to improve on the incumbent, as a share, shape (n,)."""
    doubted = Normal(slack.mean, (slack.stddev.square() + DOUBTED_STDDEV**2).sqrt())
    modelled, otherwise = (constrained_improvement(learned(rate, noise), each, incumbent=incumbent) for each in (slack, doubted))
    return (1 - DOUBT) * modelled + DOUBT * otherwise


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
    ) -> None:
        """Build the surrogates of a problem.

        Args:
            beliefs: Coefficients learned elsewhere, which replace those of the device's prior.
            formula: Computes the seconds of a step.
            memory_formula: Computes the peak memory of a step in bytes.
        """
        time, size = beliefs_of_job(problem, beliefs)
        work, points = workload_of(problem, candidates), encoded(candidates)
        rate = CostModel(formula, work, time, sign=-1.0)
        slack = CostModel(memory_formula, work, size, offset=math.log(problem.cluster.usable_bytes))
        layouts = torch.from_numpy(groups(candidates, LAYOUT))
        points_of_rate: Tensor = points
        cost: MeanFunction = rate
        if varies(candidates):
            parts = TwoParts(rate, CostModel(formula, doubled(work), time, sign=-1.0), layouts)
            points = without_batch(points, candidates)
            cost, points_of_rate = parts, torch.cat([points, parts.prior_share()[:, None]], dim=1)
        room: MeanFunction = slack
        if unknown := varying_extras(candidates):
            cost = MainEffects(cost, candidates, unknown, spread=RATE_SPREAD)
            room = MainEffects(room, candidates, unknown, spread=MEMORY_SPREAD)
        self.log_rate = GaussianProcess(
            points_of_rate, layouts, cost, layout=RATE_LAYOUT, residual=RATE_RESIDUAL, nugget=RATE_NUGGET * math.sqrt(problem.cluster.hosts)
        )
        self.log_slack = GaussianProcess(points, layouts, room, layout=MEMORY_LAYOUT, residual=MEMORY_RESIDUAL, nugget=MEMORY_NUGGET)
        self.pruning = Pruning(work)
        self.limit_bytes = problem.cluster.usable_bytes
        self._strategy = problem.search_options
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._deviations = torch.from_numpy(candidates.deviations())
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
            self.log_rate.learn(rates(self._seen))
        if any(map(tells_memory, observations)):
            self.log_slack.learn(slacks(self._seen, math.log(self.limit_bytes)))

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the most valuable candidate, tried or not; None if none is left. The first has the largest expected throughput."""
        rows = torch.from_numpy(free(len(self.infeasible), taken))
        rows = rows[~self.infeasible[rows]]
        rows = rows[self._deviations[rows].argsort(stable=True)]  # the frameworks' defaults win ties
        if not len(rows) or failing(self._seen, FAILURES_IN_A_ROW):
            return self._chance.suggest(taken | set(self.infeasible.nonzero()[:, 0].tolist()))
        if not self._seen:
            return self.most_promising(rows)
        return most_valuable(rows, self.log_rate, self.log_slack, self._seen, self._strategy)

    def most_promising(self, rows: Tensor) -> int:
        """Return the candidate with the largest expected throughput: its rate times the probability that it fits.

        The probability is the safety margin. A limit on the mean of memory would let a candidate win that fails every other time.
        If none is expected to fit, the candidate that needs the least memory is returned, not the one whose memory is known least.
        """
        rate, slack = self.log_rate.at(rows), self.log_slack.at(rows)
        if not (slack.mean <= 0).any():
            return int(rows[slack.mean.argmin()])
        return int(rows[(rate.mean + torch.special.log_ndtr(-slack.mean / slack.stddev)).argmax()])

    def fitting(self) -> Tensor:
        """Return the mask of candidates that are predicted to fit and are not ruled out, shape (N,)."""
        return (self.log_slack.at(slice(None)).mean <= 0) & ~self.infeasible

    def needed_bytes(self) -> Tensor:
        """Return the predicted peak memory of each candidate in bytes, shape (N,)."""
        return self.limit_bytes * self.log_slack.at(slice(None)).mean.exp()

    def predict(self, candidate: int) -> Prediction:
        """Return the prediction for a trial of the candidate."""
        rows = torch.tensor([candidate])
        rate, slack = self.log_rate.of_candidate(candidate), self.log_slack.of_candidates(rows)
        needed, needed_stddev = round(self.limit_bytes * math.exp(slack.mean)), float(slack.stddev)
        if known := [seen.memory_bytes for seen in self._seen if seen.candidate == candidate and seen.measured and seen.memory_bytes]:
            needed, needed_stddev = known[-1], MEMORY_AGAIN
        return Prediction(
            steps_per_s=math.exp(rate.mean),
            log_stddev=math.hypot(rate.stddev, math.sqrt(trial_variance(self._seen))) * self.widening,
            memory_bytes=needed,
            memory_log_stddev=needed_stddev,
        )
