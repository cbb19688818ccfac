"""Replaces censored observations ("at least this value", "at most this value") by Gaussian ones, by expectation propagation.

An out-of-memory trial shows that its memory is at least the limit, not how much it is; one that ran without reporting its memory shows
that it is at most the limit. The likelihood is Phi(side (f - bound) / softness). It is replaced by the Gaussian that changes the posterior
in the same way (Minka 2001; Rasmussen & Williams 2006, section 3.6 and eq. 3.82). This Gaussian is called the observation's stand-in.

Notation (n observations, c of them censored):
    mean, cov        prior mean and covariance at all observations       (n,), (n, n)
    target, noise    observed values and their variances; those of the
                     stand-ins where censored                            (n,), (n,)
    side             1 where the target is a lower bound, -1 where it is an
                     upper bound, 0 where a value was measured           (n,)
"""

import math

import torch
from torch import Tensor

from oppa.tuning.surrogate.map_fit import cholesky

SWEEPS = 60
TOLERANCE = 1e-5
"""Sweeps end when no stand-in's precision changes by more than this share of the posterior precision. Each sweep halves the rest."""
VAGUE = 1e6
"""Variance of an uninformative stand-in."""


def propagate(mean: Tensor, cov: Tensor, target: Tensor, noise: Tensor, side: Tensor, *, softness: float) -> tuple[Tensor, Tensor]:
    """Return targets and noise in which each censored observation is its Gaussian stand-in.

    Args:
        mean: Prior mean, shape (n,).
        cov: Prior covariance without noise, shape (n, n).
        target: Observed values; the bound where censored, shape (n,).
        noise: Variances; ignored where censored, shape (n,).
        side: The side of the bound on which the value is, shape (n,).
        softness: Standard deviation of the bound itself.
    """
    censored = side != 0
    if not censored.any():
        return target, noise
    bound, sign = (target - mean)[censored], side[censored]
    precision = torch.where(censored, 1 / VAGUE, 1 / noise)
    shift = torch.where(censored, 0.0, target - mean) * precision  # of the residual f - mean
    for _ in range(SWEEPS):
        variance, centre = _marginals(cov, precision, shift)
        new = _stand_in(variance[censored], centre[censored], precision[censored], shift[censored], bound, sign, softness)
        change = ((new[0] - precision[censored]) * variance[censored]).abs().max()
        precision, shift = precision.clone(), shift.clone()
        precision[censored], shift[censored] = new
        if change < TOLERANCE:
            break
    return mean + shift / precision, 1 / precision


def _marginals(cov: Tensor, precision: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return the posterior variances and means of the residuals f - mean, each of shape (n,)."""
    root = precision.sqrt()
    factor = cholesky(torch.eye(len(cov), dtype=cov.dtype) + root[:, None] * cov * root)
    half = torch.linalg.solve_triangular(factor, root[:, None] * cov, upper=False)
    posterior = cov - half.T @ half
    return posterior.diagonal(), posterior @ shift


def _stand_in(
    variance: Tensor, centre: Tensor, precision: Tensor, shift: Tensor, bound: Tensor, sign: Tensor, softness: float
) -> tuple[Tensor, Tensor]:
    """Return the new precision and shift of each stand-in, shape (c,) each.

    They match the moments of cavity times likelihood. They move only half-way there, which keeps the sweeps stable.
    """
    cavity_precision = (1 / variance - precision).clamp_min(1e-12)
    cavity_variance = 1 / cavity_precision
    cavity_mean = cavity_variance * (centre / variance - shift)
    total = cavity_variance + softness**2
    z = sign * (cavity_mean - bound) / total.sqrt()
    ratio = torch.exp(-0.5 * z.square() - 0.5 * math.log(2 * math.pi) - torch.special.log_ndtr(z))  # phi / Phi
    tilted_mean = cavity_mean + sign * cavity_variance * ratio / total.sqrt()
    tilted_variance = cavity_variance - cavity_variance.square() * ratio / total * (z + ratio)
    wanted = (1 / tilted_variance.clamp_min(1e-12) - cavity_precision).clamp_min(1 / VAGUE)
    wanted_shift = tilted_mean / tilted_variance.clamp_min(1e-12) - cavity_mean * cavity_precision
    return 0.5 * (precision + wanted), 0.5 * (shift + wanted_shift)
