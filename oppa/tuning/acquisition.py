"""Acquisition: how promising is a configuration, given what we believe of its throughput and its memory.

Notation (n candidates, s Monte-Carlo samples):
    rate       samples of the throughput, in any positive unit        (s, n)
    slack      log(memory / limit); positive = too much               (s, n)
    value X    rate * (1 - sigmoid(slack / temperature))              (s, n)
"""

import math

import torch
from torch import Tensor

from oppa.tuning.belief import Normal

TEMPERATURE = 0.05
"""Width of the step from feasible to infeasible, in log memory: 5% of the limit."""
SAMPLES = 256


def constrained_ucb(log_rate: Normal, log_slack: Normal, *, beta: float = 1.0, temperature: float = TEMPERATURE) -> Tensor:
    """E[X + beta' |X - E[X]|] by quasi-Monte-Carlo, shape (n,) (OPPA eq. 4).

    The sigmoid gets the slack against the limit, not bytes, and samples of a log throughput are exponentiated before the product, or
    infeasible points gain where the logarithm is negative. E|X - E[X]| of a normal is sqrt(2 / pi) sigma: beta' = beta sqrt(pi / 2)
    makes this mean + beta sigma where memory does not bind, as the paper says.
    """
    scale = log_rate.mean.max()  # rates relative to the best believed: the order is the same, and exp cannot overflow
    draws = _base_samples(log_rate.mean.dtype)
    rate = (log_rate.mean - scale + log_rate.stddev * draws[:, :1]).exp()
    slack = log_slack.mean + log_slack.stddev * draws[:, 1:]
    value = rate * torch.sigmoid(-slack / temperature)
    mean = value.mean(dim=0)
    return mean + beta * math.sqrt(math.pi / 2) * (value - mean).abs().mean(dim=0)


def _base_samples(dtype: torch.dtype) -> Tensor:
    """Standard normal draws for (rate, slack), common to all candidates, shape (s, 2)."""
    sobol = torch.quasirandom.SobolEngine(2, scramble=True, seed=0)
    uniform = sobol.draw(SAMPLES, dtype=dtype).clamp(1e-6, 1 - 1e-6)
    return math.sqrt(2.0) * torch.erfinv(2 * uniform - 1)
