"""Compute the expected loss of goodput: how far the chosen candidate may fall short of the best one, as rates are uncertain.

The noise scale of training is unknown beforehand. It is assumed log-uniform over a range, and put on a grid. At each noise
scale a controller chooses the row with the largest predicted goodput (COPUS eq. 7) among the allowed ones. These are the rows that ran,
and those that are predicted to fit safely. Rows that are not known well, or may not fit, may be better.

Notation (n candidates, k noise scales, s draws, z quadrature nodes, c candidates whose trials are valued):
    rate       joint distribution of log steps per second                         (n,), (n, n)
    fits       probability that a candidate fits                                  (n,)
    weights    log goodput at one step per second                                 (k, n)
    allowed    mask of the candidates that may be chosen                          (n,)
    chosen     number of the chosen candidate                                     (k,)
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from oppa.table.goodput import goodput
from oppa.tuning.surrogate.covariance import cholesky
from oppa.tuning.surrogate.distributions import Joint, Normal

NOISE_SCALES = 24
BEYOND = 4.0
"""The noise scale is between the smallest batch over this and the largest times this; beyond, the choice hardly changes."""
DRAWS = 512
NODES = 21


def noise_scales(batches: Sequence[int]) -> Tensor:
    """Return the grid over which the noise scale is log-uniform, in sequences, shape (k,)."""
    return torch.from_numpy(np.geomspace(min(batches) / BEYOND, max(batches) * BEYOND, NOISE_SCALES))


def log_weights(global_batch: Tensor, scales: Tensor) -> Tensor:
    """Return the log goodput at one step per second, shape (k, n) (COPUS eq. 7, where throughput is steps per second times B)."""
    batch = global_batch.double().numpy()
    return torch.from_numpy(np.log(goodput(batch, batch, scales.numpy()[:, None])))


def choices(log_rate: Tensor, allowed: Tensor, weights: Tensor) -> Tensor:
    """Return the number of the candidate chosen at each noise scale, shape (k,).

    Args:
        log_rate: Means of log steps per second, shape (n,).
        allowed: Candidates that may be chosen, bool, shape (n,), at least one.
    """
    return torch.where(allowed, log_rate + weights, -math.inf).argmax(dim=1)


def promise(rate: Normal, fits: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Return the expected improvement of each candidate over the chosen one, as a share of the chosen goodput, shape (k, n)."""
    at = rate.mean + weights
    ahead = at - at.gather(1, chosen[:, None])
    d = ahead / rate.stddev
    option = (ahead + 0.5 * rate.stddev.square()).clamp_max(50.0).exp() * torch.special.ndtr(d + rate.stddev) - torch.special.ndtr(d)
    return torch.as_tensor(option.clamp_min(0) * fits)


def draw_normal(belief: Joint, *, draws: int = DRAWS) -> Tensor:
    """Draw samples of a joint distribution, shape (s, n); each call gives the same samples."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn((draws, len(belief.mean)), generator=generator, dtype=torch.float64)
    z = torch.cat([z[: draws // 2], -z[: draws - draws // 2]])  # antithetic draws make the means exact
    return belief.mean + z @ cholesky(belief.covariance + 1e-12 * torch.eye(len(belief.mean), dtype=torch.float64)).T


def knowing(belief: Joint, known: Tensor) -> Joint:
    """Condition a joint distribution on the `known` values, bool, shape (n,), being exactly their means.

    Their variance becomes 0, and that of correlated values shrinks. The means stay.
    """
    covariance = belief.covariance.clone()
    if known.any():
        among = covariance[known][:, known]
        factor = cholesky(among + 1e-9 * torch.eye(len(among), dtype=torch.float64))
        half = torch.linalg.solve_triangular(factor, covariance[known], upper=False)
        covariance = covariance - half.T @ half
    covariance[known] = 0.0
    covariance[:, known] = 0.0
    return Joint(belief.mean, covariance)


def expected_loss(log_rates: Tensor, fitting: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Return the share of the best goodput that the choice is expected to lack, at each noise scale, shape (k,).

    Args:
        log_rates: Draws of the true log throughputs, shape (s, n).
        fitting: Draws of which candidates fit, shape (s, n), bool. A choice that does not fit loses everything.
    """
    available = torch.where(fitting, log_rates, -math.inf)
    losses = []
    for weight, choice in zip(weights, chosen.tolist(), strict=True):
        goodputs = available + weight
        best = goodputs.max(dim=1).values
        kept = torch.where(best > -math.inf, goodputs[:, choice] - best, 0.0)  # where nothing fits, nothing is lost
        losses.append((1 - kept.exp()).mean())
    return torch.stack(losses)


def value_of_trials(rate: Joint, *, fits: Tensor, allowed: Tensor, weights: Tensor, tried: Tensor, noise: Tensor, own: Tensor) -> Tensor:
    """Return by how much a trial of each is expected to lower the expected loss, averaged over the noise scales, shape (c,).

    Implements the knowledge gradient of a correlated normal belief (Frazier, Powell and Dayanik 2009, section 3). A trial informs about all
    correlated candidates, and its own candidate may be chosen from then on.

    Args:
        tried: The numbers of the candidates whose trials are valued, shape (c,).
        noise: Variance of each trial's log throughput around the true one, shape (c,).
        own: Variance of each candidate's own deviation as an outlier, which only its own trial reveals, shape (c,).
    """
    able = allowed.nonzero()[:, 0]
    variance = rate.covariance[tried, tried] + own
    spread = (variance + noise).sqrt()
    moves = rate.covariance[tried][:, able] / spread[:, None]  # (c, a)
    nodes, shares = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(NODES))
    shares = shares / shares.sum()
    after = rate.mean[able] + moves[:, None, :] * nodes[:, None]  # (c, z, a)
    itself = rate.mean[tried, None] + (variance / spread)[:, None] * nodes
    total = torch.zeros(len(tried), dtype=torch.float64)
    for weight in weights:
        now = (rate.mean[able] + weight[able]).max()
        best = torch.maximum((after + weight[able]).amax(dim=2), itself + weight[tried, None])
        total += ((best - now) @ shares).clamp_min(0)
    return total / len(weights) * fits[tried]
