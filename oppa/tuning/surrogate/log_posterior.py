"""Evaluate the log posterior of the hyper-parameters with its gradient in closed form, several times faster than autograd.

Notation (n observations, p parameters):
    raw        hyper-parameters as GPyTorch stores them: length scales, then the variances of the      (p + 3,)
               residual, of the layouts' offsets and of the nuggets
    values     their positive values, lower + softplus(raw)                                            (p + 3,)
    deviation  targets minus the prior mean                                                            (n,)
    fixed      covariance that no hyper-parameter changes: shifts of coefficients, and known noise     (n, n)
    adjoint    derivative of minus the log likelihood by the covariance, then by the squared           (n, n)
               distances of points that are divided by length scales
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from oppa.tuning.surrogate.covariance import cholesky

LOG_2_PI = math.log(2 * math.pi)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogPosterior:
    """Holds what stays the same during a fit."""

    parameters: tuple[torch.nn.Parameter, ...]
    """The model's own parameters, in the order of `raw`."""
    points: Tensor
    same: Tensor
    """1 for two observations of one layout, else 0, shape (n, n)."""
    fixed: Tensor
    deviation: Tensor
    lower: Tensor
    """Lower bounds of the values, shape (p + 3,)."""
    loc: Tensor
    scale: Tensor
    """Mean and standard deviation of the logarithm of each value in its prior, shapes (p + 3,)."""

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> "LogPosterior":
        """Prepare a model of `GaussianProcess`."""
        (x,), y = model.train_inputs, model.train_targets
        residual, offset, linear = model.covar_module.kernels
        slopes, layout = x[:, linear.active_dims], x[:, offset.active_dims]
        known = list(_learned(model))
        return cls(
            parameters=tuple(parameter for parameter, *_ in known),
            points=x[:, residual.active_dims],
            same=offset.base_kernel.forward(layout, layout),
            fixed=linear.forward(slopes, slopes).to_dense() + torch.diag(model.likelihood.noise_covar.noise),
            deviation=y - model.mean_module(x),
            lower=torch.cat([_spread(constraint.lower_bound, parameter) for parameter, constraint, _ in known]),
            loc=torch.cat([_spread(prior.loc, parameter) for parameter, _, prior in known]),
            scale=torch.cat([_spread(prior.scale, parameter) for parameter, _, prior in known]),
        )

    @torch.inference_mode()
    def loss(self, raw: Tensor) -> tuple[float, Tensor]:
        """Return minus the log posterior of raw hyper-parameters, and its gradient, shape (p + 3,).

        The likelihood is the marginal one (OPPA eq. 23), and its gradient is that of Rasmussen & Williams (2006, eq. 5.9). The prior
        density is that of the logarithms of the values. Its mode is the median of a log-normal prior. The mode of the values themselves
        is far below the median where the prior is wide, and the posterior would be too sure of itself.

        Raises:
            ArithmeticError: the covariance is not positive definite.
        """
        values = self.lower + softplus(raw)
        lengths, (variance, layout_variance, nugget) = values[:-3], values[-3:]
        scaled = self.points / lengths
        matern, slope = matern_with_slope(scaled)
        covariance = (self.fixed + variance * matern).add_(self.same * layout_variance)
        covariance.diagonal().add_(nugget)
        factor = cholesky(covariance)
        weights = torch.cholesky_solve(self.deviation[:, None], factor)
        likelihood = -0.5 * (self.deviation @ weights[:, 0] + len(weights) * LOG_2_PI) - factor.diagonal().log().sum()
        z = (values.log() - self.loc) / self.scale
        priors = -(0.5 * (z.square() + LOG_2_PI) + self.scale.log()).sum()
        adjoint = torch.cholesky_inverse(factor).addmm_(weights, weights.T, alpha=-1).mul_(0.5)
        variances = torch.stack([(adjoint * matern).sum(), (adjoint * self.same).sum(), adjoint.trace()])
        adjoint *= slope.mul_(variance)
        stretched = 2 * (adjoint.sum(dim=0) @ scaled.square() - (scaled * (adjoint @ scaled)).sum(dim=0))
        gradient = torch.cat([-2 * stretched / lengths, variances]) + z / self.scale / values
        return -float(likelihood + priors), gradient * raw.sigmoid()


def matern_with_slope(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Matern-5/2 correlations of points divided by length scales, and their derivatives by squared distance, shapes (n, n)."""
    norms = scaled.square().sum(dim=1)
    squared = torch.addmm(norms + norms[:, None], scaled, scaled.T, alpha=-2).clamp_min_(0)
    squared.fill_diagonal_(0)
    distance = squared.sqrt_().mul_(math.sqrt(5))
    falling = (-distance).exp_()
    slope = (distance + 1).mul_(falling)
    return distance.square_().div_(3).mul_(falling).add_(slope), slope.mul_(-5 / 6)


def _learned(model: Any) -> Iterator[tuple[torch.nn.Parameter, Any, Any]]:
    """Yield each raw hyper-parameter with its constraint and its log-normal prior, in the order of `raw`."""
    residual, offset, _ = model.covar_module.kernels
    noise = model.likelihood.second_noise_covar
    yield residual.base_kernel.raw_lengthscale, residual.base_kernel.raw_lengthscale_constraint, residual.base_kernel.lengthscale_prior
    yield residual.raw_outputscale, residual.raw_outputscale_constraint, residual.outputscale_prior
    yield offset.raw_outputscale, offset.raw_outputscale_constraint, offset.outputscale_prior
    yield noise.raw_noise, noise.raw_noise_constraint, noise.noise_prior


def _spread(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a value for each element of a parameter."""
    return torch.as_tensor(value, dtype=parameter.dtype).expand(parameter.numel())
