"""Inflate the noise of odd observations, as a Student-t likelihood does.

A run that stalls is ten times slower than its neighbours, and does not inform about them. A normal likelihood would explain it by
coefficients that are far off or by a residual that varies wildly. It would discard what it had learned. Under Student's t distribution,
each observation has a variance of its own. Expectation-maximisation finds it (Lange, Little and Taylor 1989): the larger the distance from
what all observations predict, the larger the variance. Where the prior itself is uncertain, the distance counts against the prior first.

Notation (n observations):
    prior     prior covariance of the process at the observations    (n, n)
    centre    prior mean of the process at the observations          (n,)
    noise     variance of each observation before it is inflated     (n,)
"""

import torch
from torch import Tensor

from oppa.tuning.surrogate.covariance import cholesky

FREEDOM = 3.0
"""Degrees of freedom: the fewest with a finite variance."""
ROUNDS = 40
SETTLED = 1e-3
"""Rounds end when no variance changes by more than this share."""


def own_variance(prior: Tensor, centre: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """Return the variance to add to each observation, shape (n,); mostly 0."""
    inflated = noise
    for _ in range(ROUNDS):
        factor = cholesky(prior + torch.diag(inflated))
        miss = target - centre - prior @ torch.cholesky_solve((target - centre)[:, None], factor)[:, 0]
        half = torch.linalg.solve_triangular(factor, prior, upper=False)
        remaining = (prior.diagonal() - half.square().sum(dim=0)).clamp_min(0)
        before, inflated = inflated, torch.maximum(noise, (FREEDOM * noise + miss.square() + remaining) / (FREEDOM + 1))
        if ((inflated - before).abs() < SETTLED * before).all():
            break
    return inflated - noise


def log_density(own: Tensor, noise: Tensor) -> Tensor:
    """Return the log density of the added variances over that of none, shape (): Student's t is a normal whose variance is drawn.

    The variance is drawn from an inverse gamma distribution; its density is that of the logarithm. Without this term, a model that misses
    an observation would be free to call it odd.
    """
    ratio = (noise + own) / noise
    return -0.5 * FREEDOM * (ratio.log() + 1 / ratio - 1).sum()
