"""Compute the two factors of constrained expected improvement (Gardner et al. 2014) in logarithms (Ament et al. 2023, LogEI).

Logarithms stay exact where the improvement, or the probability, is too small for a float. All shapes are (n,).
"""

import torch
from botorch.acquisition.analytic import _log_ei_helper
from torch import Tensor

from oppa.tuning.surrogate.distributions import Normal


def log_improvement(log_rate: Normal, *, incumbent: float) -> Tensor:
    """Return the logarithm of the expected improvement of log throughput on the incumbent's."""
    return torch.as_tensor(_log_ei_helper((log_rate.mean - incumbent) / log_rate.stddev) + log_rate.stddev.log())


def log_chance(log_slack: Normal) -> Tensor:
    """Return the logarithm of the probability that each candidate fits."""
    return torch.as_tensor(torch.special.log_ndtr(-log_slack.mean / log_slack.stddev))
