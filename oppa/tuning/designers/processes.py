"""Build the Gaussian processes of `oppa` and `oppa-no-prior`: log throughput, and log(memory / limit).

Widths are standard deviations of logarithms.
"""

import math

import torch
from torch import Tensor

from oppa.cost.coefficients import Belief
from oppa.cost.memory_limits import MemoryLimits
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem
from oppa.tuning.designer import groups
from oppa.tuning.surrogate.constant import Constant
from oppa.tuning.surrogate.cost_model import MeanFunction
from oppa.tuning.surrogate.gaussian_process import GaussianProcess

LAYOUT = ("dp", "tp", "pp", "ep", "zero_stage")
"""Parameters that decide which ranks communicate. An error of the cost model is shared by all configurations with these values."""
RATE_LAYOUT, MEMORY_LAYOUT = 0.15, 0.07
RATE_RESIDUAL, MEMORY_RESIDUAL = 0.13, 0.07
"""Expected errors of the cost model before any trial of a job: for a whole layout, and as the other parameters vary."""
PLAIN_RESIDUAL = 0.7
"""Expected distance between candidates where a constant is the mean."""
RATE_NUGGET, MEMORY_NUGGET = 0.05, 0.05
"""Expected nuggets: the distance of a configuration from what all others predict. Nuggets of throughput add up over hosts, each of which
may be the slow one: the variance is this for each host.
"""
LIMIT_STDDEV = 0.045
"""Expected error of the memory that programs can report, in log units: how much of a GPU contexts, buffers and fragments take.

In the 23 runs of fms-acceleration above 40 GB, the logarithm of nvidia-smi's memory over torch's peak varies by so much.
"""
CONSTANT = Belief(median=1.0, spread=10.0, what="the same for all configurations", source="an uninformative prior")


def encoded(candidates: Candidates) -> Tensor:
    """Return the candidates in [0, 1]^p, p >= 1. A space of one candidate gets a column that does not vary."""
    points = torch.from_numpy(encode(candidates))
    return points if points.shape[1] else torch.zeros((len(points), 1), dtype=torch.float64)


def constant(candidates: Candidates) -> Constant:
    """Return a prior mean that is the same for all candidates, and uncertain by many orders of magnitude."""
    return Constant(CONSTANT, len(candidates))


def rate_process(problem: Problem, candidates: Candidates, points: Tensor, mean: MeanFunction, *, residual: float) -> GaussianProcess:
    """Return the process of log throughput at encoded candidates, shape (N, p), around a mean."""
    nugget = RATE_NUGGET * math.sqrt(problem.cluster.hosts)
    return GaussianProcess(points, layouts(candidates), mean, layout=RATE_LAYOUT, residual=residual, nugget=nugget)


def memory_process(limits: MemoryLimits, candidates: Candidates, points: Tensor, mean: MeanFunction, *, residual: float) -> GaussianProcess:
    """Return the process of log(memory / limit) at encoded candidates, shape (N, p), around a mean."""
    error = 0.0 if limits.is_certain else LIMIT_STDDEV
    return GaussianProcess(
        points, layouts(candidates), mean, layout=MEMORY_LAYOUT, residual=residual, nugget=MEMORY_NUGGET, bound_stddev=error
    )


def layouts(candidates: Candidates) -> Tensor:
    """Return the number of each candidate's layout, shape (N,)."""
    return torch.from_numpy(groups(candidates, LAYOUT))
