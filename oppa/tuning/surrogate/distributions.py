"""Define the normal distributions that surrogates return, and prepare the values that they take."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CHUNK = 256
"""Candidates per call of BoTorch's posterior, which forms the joint covariance of a chunk."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Normal:
    """Holds independent normal distributions: mean and stddev, each of shape (n,)."""

    mean: Tensor
    stddev: Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Holds a joint normal distribution: mean of shape (n,), covariance of shape (n, n)."""

    mean: Tensor
    covariance: Tensor


@torch.no_grad()
def belief_of(model: Any, inputs: Tensor) -> Normal:
    """Return a BoTorch model's posterior at each of its inputs, which have shape (n, p)."""
    beliefs = [model.posterior(chunk) for chunk in inputs.split(CHUNK)]
    mean = torch.cat([belief.mean[:, 0] for belief in beliefs])
    return Normal(mean, torch.cat([belief.variance[:, 0].clamp_min(0).sqrt() for belief in beliefs]))


def roomy(n: int) -> Normal:
    """Return a log slack with which n candidates surely fit, for a runner that reports no memory."""
    return Normal(torch.full((n,), -1.0, dtype=torch.float64), torch.full((n,), 0.1, dtype=torch.float64))


def column(values: Sequence[float]) -> Tensor:
    """Return observed values in the form that surrogates take, float64, shape (n,)."""
    return torch.tensor(values, dtype=torch.float64)
