"""Inflates the noise of observations more than 3 sigma from their leave-one-out prediction (Huber-like).

A run that stalls is ten times slower than its neighbours, and does not inform about them. A normal likelihood would explain it by a
residual that varies wildly, and would discard what it had learned. So each observation more than ODD standard deviations from the
prediction of all others gets extra variance until it is at that distance. Its influence is bounded, as under Huber's loss.

Notation (n observations):
    prior     prior covariance of the process at the observations    (n, n)
    centre    prior mean of the process at the observations          (n,)
    noise     variance of each observation before it is inflated     (n,)
"""

import torch
from torch import Tensor

ODD = 3.0
FEWEST = 3
"""Number of observations below which an outlier cannot be distinguished from a wrong prior."""
ROUNDS = 5
"""Number of iterations: one outlier can hide another, so the variances are found in turn."""


def own_variance(prior: Tensor, centre: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """Return the variance to add to each observation, shape (n,); mostly 0."""
    own = torch.zeros_like(noise)
    for _ in range(ROUNDS if len(noise) >= FEWEST else 0):
        precision = torch.linalg.inv(prior + torch.diag(noise + own))
        left_out = 1 / precision.diagonal()  # variance of each, given all others (Rasmussen and Williams 2006, eq. 5.12)
        miss = left_out * (precision @ (target - centre))
        own = ((miss / ODD).square() - (left_out - own)).clamp_min(0)
    return own
