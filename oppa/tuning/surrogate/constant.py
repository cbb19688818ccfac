"""Plain Gaussian processes over encoded configurations, by BoTorch: constant mean, Matern-5/2, one length scale per parameter.

Notation (n observations, m candidates, p encoded parameters):
    x          encoded configurations in [0, 1]     (n, p)
    y          log throughput, or log memory        (n,)
    variance   of y                                 (n,)
"""

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from oppa.tuning.surrogate.belief import Normal

CHUNK = 1024
"""Candidates per posterior call: the joint covariance of a chunk is formed on the way."""
VARIANCE_FLOOR = 1e-4
"""Trials of one configuration differ by about 1%, however exact each is in itself."""


class ConstantMeanGP:
    """A fitted process; VANILLA-BO's in OPPA's experiments (App. H.2)."""

    def __init__(self, x: Tensor, y: Tensor, variance: Tensor) -> None:
        torch.set_num_threads(1)  # a second OpenMP thread makes these small matrices ten times slower on a busy machine
        kernel = ScaleKernel(
            MaternKernel(nu=2.5, ard_num_dims=x.shape[1], lengthscale_prior=GammaPrior(3.0, 6.0)), outputscale_prior=GammaPrior(2.0, 0.15)
        )
        self._model = SingleTaskGP(
            x, y[:, None], variance.clamp_min(VARIANCE_FLOOR)[:, None], covar_module=kernel, outcome_transform=Standardize(1)
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(self._model.likelihood, self._model))

    @torch.no_grad()
    def posterior(self, x: Tensor) -> Normal:
        """The belief at each candidate, x of shape (m, p)."""
        beliefs = [self._model.posterior(chunk) for chunk in x.split(CHUNK)]
        mean = torch.cat([belief.mean[:, 0] for belief in beliefs])
        stddev = torch.cat([belief.variance[:, 0].clamp_min(0).sqrt() for belief in beliefs])
        return Normal(mean, stddev)
