"""Predicts throughput and memory by the cost model before any trial: what opponents on our own physics rank by, or learn from.

Notation (N candidates, p encoded parameters):
    rate      log throughput at the medians of the coefficients                  (N,)
    slack     log(predicted memory / limit), with its standard deviation         (N,)
    points    encoded candidates, log seconds of a step and slack, side by side  (N, p + 2)
"""

import dataclasses
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.step_time import step_time
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.model import MODEL_HINT
from oppa.problem.problem import Problem
from oppa.tuning.surrogate.cost_model import CostModel
from oppa.tuning.surrogate.distributions import Normal

UNEXPLAINED = 0.1
"""Standard deviation of log memory that no coefficient explains: the error of a layout and of the other parameters, as `oppa` expects."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CostPredictions:
    """Holds what the cost model predicts of all candidates."""

    rate: Tensor
    slack: Normal
    points: NDArray[np.float64]


def cost_predictions(problem: Problem, candidates: Candidates) -> CostPredictions:
    """Return the predictions for a problem's candidates; raises InputError if the cost model says nothing about the job."""
    if not problem.has_prior:
        raise InputError("this designer needs the cost model, which predicts only jobs with [model] and no [objective]", hint=MODEL_HINT)
    torch.set_num_threads(1)
    work, (time, size) = workload_of(problem, candidates), beliefs_of_job(problem)
    rate = CostModel(step_time, work, time, sign=-1.0).at(torch.zeros(len(time), dtype=torch.float64))
    room = CostModel(memory, work, size, offset=math.log(problem.cluster.usable_bytes))
    mean, slopes = room.linearised(torch.zeros(len(size), dtype=torch.float64))
    slack = Normal(mean, (slopes.square().sum(dim=1) + UNEXPLAINED**2).sqrt())
    return CostPredictions(rate=rate, slack=slack, points=np.column_stack([encode(candidates), -rate, mean]))
