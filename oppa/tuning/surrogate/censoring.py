"""Replace censored observations ("at least this value", "at most this value") by Gaussian ones, by expectation propagation.

An out-of-memory trial shows that its memory is at least the limit, not how much it is. One that ran without reporting its memory shows that
it is at most the limit. The likelihood is Phi(side (f - bound) / softness). It is replaced by the Gaussian that changes the posterior in
the same way (Minka 2001; Rasmussen & Williams 2006, section 3.6 and eq. 3.82). This Gaussian is called the observation's stand-in.

A trial may also fail for an unknown cause. Then the likelihood is Phi(z) + odds (1 - Phi(z)), where `odds` is how much more rarely a trial
fails so whose memory suffices. It is the mixture of the bound, and of an observation that shows nothing.

Notation (n observations, c of them censored):
    mean, cov        prior mean and covariance at all observations       (n,), (n, n)
    target, noise    observed values and their variances; those of the
                     stand-ins where censored                            (n,), (n,)
    side             1 where the target is a lower bound, -1 where it is an
                     upper bound, 0 where a value was measured           (n,)
    odds             likelihood on the other side of the bound, relative
                     to that on its own side; 0 for a certain bound      (n,)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from oppa.tuning.surrogate.covariance import cholesky

SWEEPS = 60
TOLERANCE = 1e-5
"""Sweeps end when no stand-in changes by more than this share of the posterior's precision or deviation. Each sweep halves the rest."""
VAGUE = 1e6
"""Variance of an uninformative stand-in."""
FARTHEST = 3.0
"""Largest distance of a stand-in from what all others predict, in standard deviations of that, where the bound is uncertain.

The mixture may be wider than that prediction, and no Gaussian factor widens. Its mean is kept, and its width is not.
"""


class _Sites(NamedTuple):
    """Holds the Gaussian factor of each observation, of the residual f - mean."""

    precision: Tensor
    shift: Tensor
    """Precision times mean."""

    def at(self, rows: Tensor) -> "_Sites":
        """Return some of the factors."""
        return _Sites(precision=self.precision[rows], shift=self.shift[rows])

    def replaced(self, rows: Tensor, new: "_Sites") -> "_Sites":
        """Return the factors with new ones in some rows."""
        precision, shift = self.precision.clone(), self.shift.clone()
        precision[rows], shift[rows] = new
        return _Sites(precision=precision, shift=shift)


class _Marginals(NamedTuple):
    """Holds the posterior of each residual f - mean."""

    variance: Tensor
    mean: Tensor


class _Bound(NamedTuple):
    """Holds the likelihood of each censored residual: it is on one side of a soft bound."""

    value: Tensor
    sign: Tensor
    odds: Tensor
    softness: float


def propagate(
    mean: Tensor, cov: Tensor, target: Tensor, noise: Tensor, side: Tensor, odds: Tensor, *, softness: float
) -> tuple[Tensor, Tensor]:
    """Return targets and noise in which each censored observation is its Gaussian stand-in.

    Args:
        mean: Prior mean, shape (n,).
        cov: Prior covariance without noise, shape (n, n).
        target: Observed values; the bound where censored, shape (n,).
        noise: Variances; ignored where censored, shape (n,).
        side: The side of the bound on which the value is, shape (n,).
        odds: Likelihood of the other side, relative to that of this one, shape (n,).
        softness: Standard deviation of the bound itself.
    """
    censored = side != 0
    if not censored.any():
        return target, noise
    bound = _Bound(value=(target - mean)[censored], sign=side[censored], odds=odds[censored], softness=softness)
    precision = torch.where(censored, 1 / VAGUE, 1 / noise)
    sites = _Sites(precision=precision, shift=torch.where(censored, 0.0, target - mean) * precision)
    for _ in range(SWEEPS):
        marginals = _marginals(cov, sites)
        old, variance = sites.at(censored), marginals.variance[censored]
        new = _stand_in(_Marginals(variance=variance, mean=marginals.mean[censored]), old, bound)
        moved = torch.stack([(new.precision - old.precision) * variance, (new.shift - old.shift) * variance.sqrt()])
        change = moved.abs().max()
        sites = sites.replaced(censored, new)
        if change < TOLERANCE:
            break
    return mean + sites.shift / sites.precision, 1 / sites.precision


def _marginals(cov: Tensor, sites: _Sites) -> _Marginals:
    """Return the posterior of each residual, shape (n,)."""
    root = sites.precision.sqrt()
    factor = cholesky(torch.eye(len(cov), dtype=cov.dtype) + root[:, None] * cov * root)
    half = torch.linalg.solve_triangular(factor, root[:, None] * cov, upper=False)
    posterior = cov - half.T @ half
    return _Marginals(variance=posterior.diagonal(), mean=posterior @ sites.shift)


def _stand_in(marginal: _Marginals, site: _Sites, bound: _Bound) -> _Sites:
    """Return the new stand-ins, shape (c,).

    They match the moments of cavity times likelihood. They move only half-way there, which keeps the sweeps stable.
    """
    cavity_precision = (1 / marginal.variance - site.precision).clamp_min(1e-12)
    cavity_variance = 1 / cavity_precision
    cavity_mean = cavity_variance * (marginal.mean / marginal.variance - site.shift)
    sign, total = bound.sign, cavity_variance + bound.softness**2
    z = sign * (cavity_mean - bound.value) / total.sqrt()
    ratio = torch.exp(-0.5 * z.square() - 0.5 * math.log(2 * math.pi) - torch.special.log_ndtr(z))  # phi / Phi
    shift = sign * cavity_variance * ratio / total.sqrt()
    variance = cavity_variance - cavity_variance.square() * ratio / total * (z + ratio)
    bounded = (1 - bound.odds) * torch.special.ndtr(z)
    weight = torch.where(bound.odds > 0, bounded / (bounded + bound.odds), 1.0)  # of the bound, against the cavity itself
    tilted_mean = cavity_mean + weight * shift
    tilted_variance = cavity_variance + weight * (variance - cavity_variance) + weight * (1 - weight) * shift.square()
    moved = (tilted_mean - cavity_mean).abs() / cavity_variance.sqrt()
    least = torch.where(bound.odds > 0, cavity_precision * moved / (FARTHEST - moved).clamp_min(1e-12), 0.0)
    wanted = (1 / tilted_variance.clamp_min(1e-12) - cavity_precision).maximum(least).clamp_min(1 / VAGUE)
    wanted_shift = tilted_mean * (wanted + cavity_precision) - cavity_mean * cavity_precision
    return _Sites(precision=0.5 * (site.precision + wanted), shift=0.5 * (site.shift + wanted_shift))
