"""Test the gradient statistics with gradients of a known noise scale, through the same hooks and the same all-reduce.

The test runs under torchrun, with the process group that training would use, or on one process.
"""

import dataclasses

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oppa.training.statistics.gradient_statistics import GradientStatistics
from oppa.training.statistics.noise_scale import NoiseScale, Smoothing

_DIMENSIONS, _MICRO_TOKENS = 256, (8, 8, 8, 3)
_PLAIN_MEAN = Smoothing(warming=1 - 1e-9, steady=1 - 1e-9, calibration=1.0)
"""Smoothing that approximates the plain mean over all steps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScaleSelfTest:
    """Holds the true noise scale of the gradients and the estimate, in tokens."""

    planted_tokens: float
    found: NoiseScale

    @property
    def error(self) -> float:
        """Return the relative error; about 3% after 200 steps is chance."""
        return abs(self.found.tokens_per_batch / self.planted_tokens - 1)


class _Planted(nn.Module):
    """Makes gradients that are the mean of the inputs: each token's input is the true gradient plus noise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(_DIMENSIONS))

    def forward(self, each: Tensor) -> Tensor:
        return each @ self.weight


def self_test(*, planted_tokens: float = 50.0, steps: int = 200, seed: int = 0, device: str = "cpu") -> NoiseScaleSelfTest:
    """Estimate the noise scale of random gradients whose noise scale is `planted_tokens`.

    The last micro-batch of each step is smaller than the others.
    """
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    alone = _Planted().to(device)
    model = DistributedDataParallel(alone) if ranks > 1 else alone
    statistics = GradientStatistics(model, noise_scale=NoiseScale(smoothing=_PLAIN_MEAN))
    generator = torch.Generator(device).manual_seed(seed * ranks + rank)
    true = torch.full((_DIMENSIONS,), _DIMENSIONS**-0.5, device=device)  # its norm is 1, so that tr(Sigma) of a token is the noise scale
    for _ in range(steps):
        for tokens in _MICRO_TOKENS:
            noise = torch.randn(tokens, _DIMENSIONS, generator=generator, device=device)
            each = true + noise * (planted_tokens / _DIMENSIONS) ** 0.5
            (model(each).sum() / sum(_MICRO_TOKENS)).backward()
        statistics.step(_MICRO_TOKENS)
        model.zero_grad()
    return NoiseScaleSelfTest(planted_tokens=planted_tokens, found=statistics.noise_scale)
