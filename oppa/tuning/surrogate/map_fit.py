"""Fit hyper-parameters by maximum a posteriori: L-BFGS maximises the marginal likelihood with all priors.

The model is BoTorch's, but its likelihood is evaluated with dense matrices. On as many points as there are trials, this is five to ten
times faster than lazy tensors, and reaches the same optimum.
"""

import math
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from linear_operator import to_dense
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.distributions import Normal

JITTERS = (1e-10, 1e-8, 1e-6, 1e-4)
MAX_EVALUATIONS = 200
TOLERANCE = 1e-5
"""Relative change of the log posterior at which a fit ends. The same data begin and end a fit at the same points."""
_LIBRARIES = ThreadpoolController()


def fit(model: SingleTaskGP) -> None:
    """Move the model's hyper-parameters from their present values to the nearest optimum."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    least, best = math.inf, start

    def objective(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), parameters)
        try:
            loss = negative_log_posterior(model)
        except ArithmeticError:
            return 1e10, np.zeros_like(vector)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        nonlocal least, best
        if float(loss.detach()) < least:
            least, best = float(loss.detach()), vector.copy()
        return float(loss.detach()), torch.cat([gradient.flatten() for gradient in flat]).numpy()

    options = {"maxfun": MAX_EVALUATIONS, "ftol": TOLERANCE, "gtol": 1e-4}
    with _LIBRARIES.limit(limits=1):  # a second thread makes L-BFGS's small products several times slower
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    # The line search returns NaN where the likelihood is unbounded: the mean function fits observations without noise exactly.
    reached = found.x if np.isfinite(found.x).all() else best
    torch.nn.utils.vector_to_parameters(torch.from_numpy(reached), parameters)


def negative_log_posterior(model: Any) -> Tensor:
    """Return minus the log marginal likelihood and the log density of all priors (OPPA eq. 23 is the likelihood alone), shape ().

    The density is that of the logarithms of the hyper-parameters. Its mode is the median of a log-normal prior. The mode of the values
    themselves is far below the median where the prior is wide, and the posterior would be too sure of itself.
    """
    (x,), y = model.train_inputs, model.train_targets
    factor = cholesky(covariance(model))
    residual = torch.linalg.solve_triangular(factor, (y - model.mean_module(x))[:, None], upper=False)
    likelihood = -0.5 * residual.square().sum() - factor.diagonal().log().sum() - 0.5 * len(y) * math.log(2 * math.pi)
    priors = sum(
        Normal(prior.loc, prior.scale, validate_args=False).log_prob(value(module).log()).sum()
        for _, module, prior, value, _ in model.named_priors()  # each is log-normal
    )
    return torch.as_tensor(-(likelihood + priors))


def covariance(model: Any) -> Tensor:
    """Return the covariance of the observations, noise included, shape (n, n)."""
    return prior_covariance(model.covar_module, model.train_inputs[0]) + torch.diag(model.likelihood.noise)


def prior_covariance(kernel: Any, x: Tensor) -> Tensor:
    """Return the prior covariance at inputs, shape (n, n).

    It is summed kernel by kernel, since a lazy sum with a linear kernel costs a singular value decomposition.
    """
    columns = ((part, x[:, part.active_dims]) for part in kernel.kernels)
    return torch.stack([to_dense(part.forward(own, own)) for part, own in columns]).sum(dim=0)


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor, with as little jitter as works; raises ArithmeticError if none does."""
    diagonal = matrix.diagonal().detach()
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    for scale in (diagonal.min(), diagonal.median()):  # the smallest first: a censored observation's stand-in may have a variance of 1e6
        for jitter in JITTERS:
            factor, failed = torch.linalg.cholesky_ex(matrix + jitter * scale * eye)
            if not failed:
                return torch.as_tensor(factor)
    raise ArithmeticError("no jitter makes the covariance positive definite")
