"""Compute acquisition values: how promising a configuration is, given the posteriors of its throughput and its memory.

Notation (n candidates, s Monte-Carlo samples, q quadrature nodes):
    slack      log(memory / limit); positive = too much                  (n,)
    share      1 - sigmoid(slack / temperature), the value's share       (n, q)
    value X    throughput * share
"""

import math

import torch
from torch import Tensor

from oppa.tuning.surrogate.distributions import Normal
from oppa.tuning.surrogate.gaussian_process import SOFTNESS

TEMPERATURE = 0.05
"""Width of the step from feasible to infeasible, in log memory: 5% of the limit."""
REACH = 6.0
"""Distance from the limit, in temperatures, beyond which the share counts as 1 or 0 (to 0.25%)."""
NODES = 16
SAMPLES = 256
CHUNK = 16384


def constrained_ucb(log_rate: Normal, log_slack: Normal, *, beta: float = 1.0) -> Tensor:
    """Return E[X + beta' |X - E[X]|] for a log-normal throughput and a log-normal memory, shape (n,) (OPPA eq. 4).

    The expectation over the throughput is exact: the expected distance of a log-normal value from its mean is that of two options on it.
    Memory is integrated by Gauss-Legendre quadrature, and only where the share varies.

    The sigmoid takes the slack against the limit, not bytes. Logarithms are exponentiated before the product; otherwise infeasible points
    would gain where logarithms are negative. E|X - E[X]| of a normal distribution is sqrt(2 / pi) sigma. So beta' = beta sqrt(pi / 2) makes
    this mean + beta sigma where memory does not bind, as in the paper.
    """
    scale = (log_rate.mean + log_rate.stddev).max()  # scaling by the best keeps the order, and exp cannot overflow
    chunks = zip(
        *(column.split(CHUNK) for column in (log_rate.mean - scale, log_rate.stddev, log_slack.mean, log_slack.stddev)), strict=True
    )
    return torch.cat([_exact(Normal(*parts[:2]), Normal(*parts[2:]), beta) for parts in chunks])


def constrained_improvement(log_rate: Normal, log_slack: Normal, *, incumbent: float) -> Tensor:
    """Return P(fits) E[max(0, R - r*)] / r* for a log-normal throughput R and a log-normal memory, shape (n,).

    It is expected improvement (Jones et al. 1998) times the probability to be feasible (Gardner et al. 2014). Eq. 4 prefers what is surely
    good. Expected improvement prefers what may be better than the incumbent. A configuration that fits with one chance in ten ranks above
    those that are known to be slower.

    The sigmoid of eq. 4 is left out. It would take 13% of the throughput from what surely fits in 91% of the limit, and the fastest
    configurations are close to the limit. The probability counts that the limit itself is known to SOFTNESS.

    Args:
        incumbent: log r*, the logarithm of the fastest feasible throughput so far.
    """
    fits = torch.special.ndtr(-log_slack.mean / (log_slack.stddev.square() + SOFTNESS**2).sqrt())
    place, sigma = log_rate.mean - incumbent, log_rate.stddev.clamp_min(1e-6)
    d = place / sigma
    option = (place + 0.5 * sigma.square()).exp() * torch.special.ndtr(d + sigma) - torch.special.ndtr(d)
    return torch.as_tensor(fits * option.clamp_min(0))


def learned(belief: Normal, noise: float) -> Normal:
    """Return how each candidate's posterior mean will be distributed after one more trial of it; `noise` is the variance of that trial."""
    return Normal(belief.mean, belief.stddev.square() / (belief.stddev.square() + noise).sqrt())


def value_of_repeats(log_rate: Normal, noise: float) -> Tensor:
    """Return by which share one more trial of each candidate is expected to speed up the choice among all of them, shape (n,).

    Implements the knowledge gradient of independent normal beliefs (Frazier, Powell and Dayanik 2008, eqs. 5 to 7). It is 0 for a single
    candidate.

    Args:
        noise: Variance of a trial's log throughput around the true one.
    """
    if len(log_rate.mean) == 1:
        return torch.zeros_like(log_rate.mean)
    top, second = log_rate.mean.topk(2).values
    rival = torch.where(log_rate.mean == top, second, top)
    moves = learned(log_rate, noise).stddev
    d = -(log_rate.mean - rival).abs() / moves
    return torch.as_tensor(moves * (d * torch.special.ndtr(d) + (-0.5 * d.square()).exp() / math.sqrt(2 * math.pi)))


def constrained_ucb_sampled(rate: Normal, slack: Normal, *, beta: float = 1.0, temperature: float = 1.0) -> Tensor:
    """Return the value of `constrained_ucb` for a normal throughput and a normal slack, shape (n,).

    It is estimated by quasi-Monte-Carlo, with samples common to all candidates.
    """
    draws = _base_samples(rate.mean.dtype)
    values = []
    for m, s, cm, cs in zip(*(column.split(2048) for column in (rate.mean, rate.stddev, slack.mean, slack.stddev)), strict=True):
        value = (m + s * draws[:, :1]) * torch.sigmoid(-(cm + cs * draws[:, 1:]) / temperature)
        mean = value.mean(dim=0)
        values.append(mean + beta * math.sqrt(math.pi / 2) * (value - mean).abs().mean(dim=0))
    return torch.cat(values)


def bound(log_determinant: float, noise: Tensor, *, norm: float = 1.0, delta: float = 0.1) -> float:
    """Return beta_i = B + sqrt(2 log(det(K + S)^(1/2) / (delta det(S)^(1/2)))) (OPPA eq. 32).

    Args:
        log_determinant: log det(K + S) of the observations' covariance.
        noise: The diagonal of S = s^2 Q^-1, shape (n,).
        norm: B, a bound on the function's norm, in units of the process.
        delta: The probability that the bound fails.
    """
    return norm + math.sqrt(max(0.0, log_determinant - float(noise.log().sum()) - 2 * math.log(delta)))


def _exact(log_rate: Normal, slack: Normal, beta: float) -> Tensor:
    share, weight = _shares(slack)
    sigma = log_rate.stddev.clamp_min(1e-6)
    rate = (log_rate.mean + 0.5 * sigma.square()).exp()
    mean = rate * (share * weight).sum(dim=1)
    # E|a R - c| is twice the option to buy a R at c, less E[a R] - c
    strike = mean.clamp_min(1e-300)[:, None]
    d = (log_rate.mean[:, None] + share.clamp_min(1e-300).log() - strike.log()) / sigma[:, None]
    option = share * rate[:, None] * torch.special.ndtr(d + sigma[:, None]) - strike * torch.special.ndtr(d)
    distance = ((2 * option - share * rate[:, None] + strike) * weight).sum(dim=1)
    return torch.as_tensor(mean + beta * math.sqrt(math.pi / 2) * distance)


def _shares(slack: Normal) -> tuple[Tensor, Tensor]:
    """Return values of the share and their probabilities, each of shape (n, q + 2).

    The columns are: surely feasible, surely infeasible, and the nodes in between.
    """
    nodes, weights = _gauss_legendre(slack.mean.dtype)
    low, high = -REACH * TEMPERATURE, REACH * TEMPERATURE
    mean, stddev = slack.mean[:, None], slack.stddev.clamp_min(1e-6)[:, None]
    # where the posterior is much narrower than the step, the nodes lie within the posterior
    start = torch.maximum(torch.tensor(low), mean - 5 * stddev).clamp_max(high)
    end = torch.minimum(torch.tensor(high), mean + 5 * stddev).clamp_min(low)
    at = start + (end - start) * nodes
    density = torch.exp(-0.5 * ((at - mean) / stddev).square()) / (stddev * math.sqrt(2 * math.pi))
    inner = density * weights * (end - start)
    below, above = torch.special.ndtr((low - mean) / stddev), torch.special.ndtr((mean - high) / stddev)
    inner = inner * ((1 - below - above).clamp_min(0) / inner.sum(dim=1, keepdim=True).clamp_min(1e-300))
    share = torch.cat([torch.ones_like(below), torch.zeros_like(above), torch.sigmoid(-at / TEMPERATURE)], dim=1)
    return share, torch.cat([below, above, inner], dim=1)


def _gauss_legendre(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [0, 1], shape (q,) each."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return torch.tensor((nodes + 1) / 2, dtype=dtype), torch.tensor(weights / 2, dtype=dtype)


def _base_samples(dtype: torch.dtype) -> Tensor:
    """Return standard normal draws for (rate, slack), common to all candidates, shape (s, 2)."""
    sobol = torch.quasirandom.SobolEngine(2, scramble=True, seed=0)
    uniform = sobol.draw(SAMPLES, dtype=dtype).clamp(1e-6, 1 - 1e-6)
    return math.sqrt(2.0) * torch.erfinv(2 * uniform - 1)
