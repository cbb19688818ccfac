"""What lies far from everything else is odd in itself: it must not mislead what is believed of its neighbours.

A run that stalls is ten times slower than its neighbours, and tells nothing of them. A normal law explains it by a residual that varies
wildly, and from then on believes nothing that it had learned. So each observation beyond ODD deviations of what all the others tell gets
variance of its own until it lies there: its pull is bounded, as under Huber's loss.

Notation (n observations):
    prior     covariance of the process at them      (n, n)
    centre    mean of the process before             (n,)
    noise     variance of each without oddities      (n,)
"""

import torch
from torch import Tensor

ODD = 3.0
FEWEST = 3
"""Observations below which nothing can be told from a prior that is off."""
ROUNDS = 5
"""One oddity hides another: the variances are found in turn."""


def own_variance(prior: Tensor, centre: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """What each observation's variance lacks, shape (n,); mostly 0."""
    own = torch.zeros_like(noise)
    for _ in range(ROUNDS if len(noise) >= FEWEST else 0):
        precision = torch.linalg.inv(prior + torch.diag(noise + own))
        left_out = 1 / precision.diagonal()  # variance of each, given all others (Rasmussen and Williams 2006, eq. 5.12)
        miss = left_out * (precision @ (target - centre))
        own = ((miss / ODD).square() - (left_out - own)).clamp_min(0)
    return own
