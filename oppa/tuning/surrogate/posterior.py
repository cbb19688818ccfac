"""Compute the posterior at many candidates, many times faster than BoTorch: factorise once, then multiply plain matrices in chunks.

Notation (n observations, m candidates, p parameters, k coefficients):
    a, b       points divided by length scales                     (n, p), (m, p)
    layouts    layout numbers, equal for equal layouts             (n,)
    slopes     features of the linear kernel                       (n, k)
    weights    (K + noise)^-1 (y - centre)                         (n,)
    inverse    inverse of the Cholesky factor of K + noise         (n, n)
"""

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor

from oppa.tuning.surrogate.covariance import cholesky, covariance
from oppa.tuning.surrogate.distributions import Joint, Normal
from oppa.tuning.surrogate.threads import map_chunks

CHUNK = 512
"""Candidates per chunk: their covariances with all observations stay in the cache."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Holds a fitted process, prepared for many queries (OPPA eqs. 24 to 27, with the prior mean at the candidate itself)."""

    scaled: Tensor
    layouts: Tensor
    slopes: Tensor
    scales: Tensor
    variance: Tensor
    layout_variance: Tensor
    weights: Tensor
    inverse: Tensor
    noise: Tensor
    """Noise variance of each observation, shape (n,)."""
    target: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, *, p: int) -> "Posterior":
        """Factorise a fitted model once. Its inputs are points (p columns), layout, slopes and centre."""
        x, y = model.train_inputs[0], model.train_targets
        residual, offset, _ = model.covar_module.kernels
        scales = residual.base_kernel.lengthscale[0]
        factor = cholesky(covariance(model))
        return cls(
            scaled=x[:, :p] / scales,
            layouts=x[:, p],
            slopes=x[:, p + 1 : -1],
            scales=scales,
            variance=residual.outputscale,
            layout_variance=offset.outputscale,
            weights=torch.cholesky_solve((y - x[:, -1])[:, None], factor)[:, 0],
            inverse=torch.linalg.solve_triangular(factor, torch.eye(len(y), dtype=y.dtype), upper=False),
            noise=model.likelihood.noise,
            target=y,
        )

    @classmethod
    @torch.no_grad()
    def before(cls, kernel: Any, *, p: int, k: int) -> "Posterior":
        """Return the prior, which is the posterior without observations."""
        residual, offset, _ = kernel.kernels
        nothing = torch.zeros(0, dtype=torch.float64)
        return cls(
            scaled=nothing.view(0, p),
            layouts=nothing,
            slopes=nothing.view(0, k),
            scales=residual.base_kernel.lengthscale[0],
            variance=residual.outputscale,
            layout_variance=offset.outputscale,
            weights=nothing,
            inverse=nothing.view(0, 0),
            noise=nothing,
            target=nothing,
        )

    @torch.inference_mode()
    def at(self, points: Tensor, layouts: Tensor, slopes: Tensor, centre: Tensor, *, widest: bool = False) -> Normal:
        """Return the posterior at m candidates: points (m, p), layouts (m,), slopes (m, k), centre (m,).

        Args:
            widest: Return the prior's standard deviations. They are at least as large, and cost less by far.
        """
        present, numbers = layouts.unique(return_inverse=True)
        offsets = self.layout_variance * (present[:, None] == self.layouts)
        compute = functools.partial(self._of_chunk, offsets, widest=widest)
        shifts, variances = zip(*map_chunks(compute, numbers.split(CHUNK), points.split(CHUNK), slopes.split(CHUNK)), strict=True)
        return Normal(centre + torch.cat(shifts), torch.cat(variances).clamp_min_(1e-12).sqrt_())

    @torch.inference_mode()
    def _of_chunk(self, offsets: Tensor, numbers: Tensor, points: Tensor, slopes: Tensor, *, widest: bool) -> tuple[Tensor, Tensor]:
        """Return by how much the means of candidates are above their centres, and their variances, shapes (m,).

        Args:
            offsets: Covariance of each layout's offset with those of the observations, shape (layouts, n).
            numbers: The row of each candidate's layout in `offsets`, shape (m,).
        """
        k = self._matern(points / self.scales, self.scaled, self.scaled.square().sum(dim=1))
        k.add_(offsets[numbers]).addmm_(slopes, self.slopes.T)
        variance = self.variance + self.layout_variance + slopes.square().sum(dim=1)
        return k @ self.weights, variance if widest else variance - (k @ self.inverse.T).square_().sum(dim=1)

    @torch.inference_mode()
    def jointly(self, points: Tensor, layouts: Tensor, slopes: Tensor, centre: Tensor, own: Tensor) -> Joint:
        """Return the joint posterior at m candidates.

        Args:
            own: Covariance with the observations that no kernel explains, shape (m, n). It is not 0 where a candidate is an observation.
        """
        x = points / self.scales
        known = self._matern(x, self.scaled, self.scaled.square().sum(dim=1)) + (layouts[:, None] == self.layouts) * self.layout_variance
        known = known + slopes @ self.slopes.T + own
        prior = self._matern(x, x, x.square().sum(dim=1)) + (layouts[:, None] == layouts) * self.layout_variance + slopes @ slopes.T
        half = known @ self.inverse.T
        return Joint(centre + known @ self.weights, prior - half @ half.T)

    def of_observed(self, known: Tensor) -> Normal:
        """Return the posterior of the observed values without their known noise, shape (n,). All other noise belongs to the value itself.

        With target = truth + e, Var(e) = known, the mean is target - known (K + noise)^-1 (target - centre).
        """
        precision = self.inverse.T @ self.inverse
        variance = known - known.square() * precision.diagonal()
        return Normal(self.target - known * self.weights, variance.clamp_min(1e-12).sqrt())

    @property
    def log_determinant(self) -> float:
        """Return the log determinant of the observations' covariance K + noise."""
        return -2 * float(self.inverse.diagonal().log().sum())

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the posterior mean and covariance of the linear kernel's weights, shapes (k,) and (k, k).

        Their prior is standard normal.
        """
        half = self.inverse @ self.slopes
        return self.slopes.T @ self.weights, torch.eye(self.slopes.shape[1], dtype=half.dtype) - half.T @ half

    def _matern(self, b: Tensor, a: Tensor, own: Tensor) -> Tensor:
        """Return the Matern-5/2 covariance of points `b` with points `a`, both divided by length scales, shape (len(b), len(a)).

        Args:
            own: Squared norms of `a`, shape (len(a),).
        """
        squared = torch.addmm(own + b.square().sum(dim=1, keepdim=True), b, a.T, alpha=-2)
        distance = squared.clamp_min_(0).sqrt_().mul_(math.sqrt(5))
        polynomial = distance.square().div_(3).add_(distance).add_(1)
        return polynomial.mul_(distance.neg_().exp_()).mul_(self.variance)
