"""Fit plain Gaussian processes over encoded configurations, by BoTorch: constant mean, Matern-5/2, one length scale per parameter.

Notation (n observations, m candidates, p encoded parameters):
    x          encoded configurations in [0, 1]     (n, p)
    y          log throughput, or log memory        (n,)
    variance   variance of y                        (n,)
"""

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from oppa.tuning.surrogate.distributions import Normal, belief_of

VARIANCE_FLOOR = 1e-4
"""Least variance of an observation: trials of one configuration differ by about 1%, however exact each one is."""


class ConstantMeanGP:
    """Holds a fitted process, like that of VANILLA-BO in OPPA's experiments (App. H.2)."""

    def __init__(self, x: Tensor, y: Tensor, variance: Tensor) -> None:
        torch.set_num_threads(1)  # a second OpenMP thread makes these small matrices ten times slower on a busy machine
        kernel = ScaleKernel(
            MaternKernel(nu=2.5, ard_num_dims=x.shape[1], lengthscale_prior=GammaPrior(3.0, 6.0)), outputscale_prior=GammaPrior(2.0, 0.15)
        )
        self._model = SingleTaskGP(
            x, y[:, None], variance.clamp_min(VARIANCE_FLOOR)[:, None], covar_module=kernel, outcome_transform=Standardize(1)
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(self._model.likelihood, self._model))

    def posterior(self, x: Tensor) -> Normal:
        """Return the posterior at each candidate, x of shape (m, p)."""
        return belief_of(self._model, x)
