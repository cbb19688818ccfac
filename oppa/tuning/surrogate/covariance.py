"""Compute the dense covariance of a BoTorch model's observations, and factorise it.

On as many points as there are trials, dense matrices are five to ten times faster than lazy tensors.
"""

from typing import Any

import torch
from linear_operator import to_dense
from torch import Tensor

JITTERS = (1e-10, 1e-8, 1e-6, 1e-4)


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
