"""Predict throughput and memory by the cost model before any trial: what opponents on our own physics rank by, or learn from.

Notation (N candidates, p encoded parameters):
    rate      log throughput at the medians of the coefficients                  (N,)
    slack     log(predicted memory / limit), with its standard deviation         (N,)
    points    encoded candidates, log seconds of a step and slack, side by side  (N, p + 2)
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.model import MODEL_HINT
from oppa.problem.problem import Problem
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.surrogate.distributions import Normal


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CostPredictions:
    """Holds what the cost model predicts of all candidates."""

    rate: Tensor
    slack: Normal
    points: NDArray[np.float64]


def cost_predictions(problem: Problem, candidates: Candidates) -> CostPredictions:
    """Return the predictions of `oppa` before any trial. Opponents compare all memory with the stated limit.

    Raises:
        InputError: the cost model does not apply to the job.
    """
    if not problem.has_prior:
        raise InputError("this designer needs the cost model, which predicts only jobs with [model] and no [objective]", hint=MODEL_HINT)
    prior = Oppa(problem, candidates, seed=0, doubts=False)
    rate, slack = prior.log_rate.at(slice(None)).mean, prior.log_slack.at(slice(None))
    slack = Normal(slack.mean + prior.limits.log_excess, slack.stddev)
    return CostPredictions(rate=rate, slack=slack, points=np.column_stack([encode(candidates), -rate, slack.mean]))
