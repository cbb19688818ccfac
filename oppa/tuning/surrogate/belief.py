"""What a surrogate is told of candidates, and what it believes of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CHUNK = 256
"""Candidates per call of BoTorch's posterior: the joint covariance of a chunk is formed on the way."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Normal:
    """Independent normal beliefs: mean and stddev, each of shape (n,)."""

    mean: Tensor
    stddev: Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """A normal belief in several things at once: mean of shape (n,), covariance of shape (n, n)."""

    mean: Tensor
    covariance: Tensor

    @property
    def marginals(self) -> Normal:
        """Of each alone."""
        return Normal(self.mean, self.covariance.diagonal().clamp_min(1e-12).sqrt())

    def take(self, rows: Tensor) -> "Joint":
        """Of some of them."""
        return Joint(self.mean[rows], self.covariance[rows][:, rows])


@torch.no_grad()
def belief_of(model: Any, inputs: Tensor) -> Normal:
    """A BoTorch model's belief at each of its inputs, which have shape (n, p)."""
    beliefs = [model.posterior(chunk) for chunk in inputs.split(CHUNK)]
    mean = torch.cat([belief.mean[:, 0] for belief in beliefs])
    return Normal(mean, torch.cat([belief.variance[:, 0].clamp_min(0).sqrt() for belief in beliefs]))


def roomy(n: int) -> Normal:
    """The slack of n candidates of a runner that reports no memory: nothing is known to be too large."""
    return Normal(torch.full((n,), -1.0, dtype=torch.float64), torch.full((n,), 0.1, dtype=torch.float64))


def column(values: Sequence[float]) -> Tensor:
    """Observed values, as the surrogates take them, shape (n,)."""
    return torch.tensor(values, dtype=torch.float64)
