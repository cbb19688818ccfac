"""Explain why a configuration is, or is not, the best: its measurements and its prediction."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import torch

from oppa.cost.memory_limits import memory_limits
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.objective import Objective
from oppa.problem.problem import Problem
from oppa.study import Prediction, Trial
from oppa.study.records import VERIFICATION
from oppa.tuning.comparison import WinnerComparison, compare_contenders, rates
from oppa.tuning.designer import Observation
from oppa.tuning.designers.oppa import Oppa, fitted
from oppa.tuning.designers.without_prior import WithoutPrior


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """States facts about one configuration, compared with the best one measured; if nothing was measured, with the best one predicted."""

    configuration: Configuration
    objective: Objective
    """Objective that is compared; a trial's rate is its throughput, or stands for it."""
    tried: Trial | None
    """Its last completed trial, else its last trial; None if it was never tried."""
    trials: int
    """Number of its trials, without the repeats that verify a winner."""
    repeats: tuple[Trial, ...]
    """Its repeats, which ran in turn with those of the best."""
    steps_per_s: float | None
    """Measured rate: the geometric mean over its repeats, else over its trials."""
    prediction: Prediction
    """The designer's present prediction."""
    usable_bytes: float
    best: Configuration
    best_steps_per_s: float
    """Rate of the best, measured like `steps_per_s`, or predicted."""
    best_measured: bool

    @property
    def ratio(self) -> float:
        """Return its rate over that of the best; the measured one if there is one, else the predicted one."""
        return (self.steps_per_s or self.prediction.steps_per_s) / self.best_steps_per_s

    @property
    def chance_of_fitting(self) -> float:
        """Return the probability that it fits into memory; 1 if no memory is predicted."""
        return 1.0 if self.prediction.probability_fits is None else self.prediction.probability_fits

    @property
    def chance_of_winning(self) -> float:
        """Return the probability that a trial of it would be faster than the best, provided that it fits."""
        belief = statistics.NormalDist(math.log(self.prediction.steps_per_s), self.prediction.log_stddev)
        return 1 - belief.cdf(math.log(self.best_steps_per_s))


def designer_of(problem: Problem, candidates: Candidates, trials: Sequence[Trial]) -> Oppa | WithoutPrior:
    """Return a designer that has observed a study's trials; raises InputError if neither a prior nor a trial predicts anything."""
    if problem.has_prior:
        return fitted(problem, candidates, trials)
    if not any(trial.feasible for trial in trials):
        hint = "run trials with `oppa tune`, and name their study"
        raise InputError(f"nothing predicts `{problem.name}`: the cost model does not apply to it, and no trial was measured", hint=hint)
    designer = WithoutPrior(problem, candidates, seed=0)
    designer.update([Observation.of(trial, candidates) for trial in trials if trial.counts and trial.purpose != VERIFICATION])
    return designer


def explain(
    designer: Oppa | WithoutPrior, problem: Problem, candidates: Candidates, candidate: int, trials: Sequence[Trial]
) -> Explanation:
    """Explain a candidate by a fitted designer and the trials that it learned from."""
    configuration = candidates.configuration(candidate)
    result = compare_contenders(trials, candidates, problem.limits.repeats, problem.baseline)
    own = _own(trials, configuration)
    tried = next((trial for trial in reversed(own) if trial.feasible), own[-1] if own else None)
    repeats = result.repeats_of(tried) if result and tried and result.repeats_of(result.best) else ()
    best, best_rate = _best_measured(result, trials, repeated=bool(repeats)) if result else _best_predicted(designer, candidates)
    measured = rates(repeats) or rates(own)
    return Explanation(
        configuration=configuration,
        objective=problem.objective,
        tried=tried,
        trials=len(own),
        repeats=repeats,
        steps_per_s=statistics.geometric_mean(measured) if measured else None,
        prediction=_predicted(designer, candidate),
        usable_bytes=memory_limits(problem).reported,
        best=best,
        best_steps_per_s=best_rate,
        best_measured=result is not None,
    )


def _own(trials: Sequence[Trial], configuration: Configuration) -> list[Trial]:
    """Return the trials of a configuration, without interrupted ones and the repeats that verify a winner."""
    return [trial for trial in trials if trial.configuration == configuration and trial.counts and trial.purpose != VERIFICATION]


def _best_measured(result: WinnerComparison, trials: Sequence[Trial], *, repeated: bool) -> tuple[Configuration, float]:
    """Return the winner and its throughput: over its repeats if `repeated`, else over its other trials."""
    best = result.best.configuration
    return best, statistics.geometric_mean(rates(result.repeats_of(result.best) if repeated else _own(trials, best)))


def _predicted(designer: Oppa | WithoutPrior, candidate: int) -> Prediction:
    """Return the prediction for a candidate; raises InputError if too few trials ran, or so many failed that choices are random."""
    prediction = designer.predict(candidate)
    if prediction is None:
        message = "nothing is predicted yet: without a cost model, two trials have to run first, and one after trials that failed in a row"
        raise InputError(message, hint="run more trials with `oppa tune`; `oppa show STUDY` lists what was measured")
    return prediction


def _best_predicted(designer: Oppa | WithoutPrior, candidates: Candidates) -> tuple[Configuration, float]:
    first = designer.most_promising(torch.arange(len(candidates)))
    return candidates.configuration(first), _predicted(designer, first).steps_per_s
