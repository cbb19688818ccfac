"""Check gradient statistics on a user's model and ranks, against squared norms that are computed directly.

The direct computation has no hooks and no layout. It runs a step for each micro-batch, in which only its loss counts, and takes the norm of
the averaged gradient, which is w_n g_n. The notation is that of `noise_scale`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oppa.errors import InputError
from oppa.training.parallel.gradient_layout import layout_of
from oppa.training.statistics.gradient_statistics import GradientStatistics
from oppa.training.statistics.noise_scale import Norms

Loss = Callable[[], Tensor]
TOLERANCE = 0.01
"""Largest relative difference. Rounding in float32 leaves 2e-5, and a norm that is missing or counts twice is seldom below 0.01."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsCheck:
    """Holds the squared norms of a step by the gradient statistics, and those that were computed directly."""

    measured: Norms
    direct: Norms

    @property
    def error(self) -> float:
        """Return the largest relative difference; NaN if a norm is not finite."""
        pairs = zip(dataclasses.astuple(self.measured), dataclasses.astuple(self.direct), strict=True)
        return float(torch.tensor([abs(ours / max(direct, 1e-300) - 1) for ours, direct in pairs]).max())


def check_gradient_statistics(
    model: nn.Module,
    losses: Sequence[Loss],
    tokens: Sequence[float],
    *,
    weighting: Literal["tokens", "equally"] = "tokens",
    tolerance: float = TOLERANCE,
) -> StatisticsCheck:
    """Compare the gradient statistics of one step with a direct computation; all ranks call it before they train.

    It runs each loss once, and once more for each micro-batch of any rank. Weights stay as they are, and gradients are None afterwards.

    Args:
        model: Model under DDP, FSDP2 or HSDP, or on one process.
        losses: Function of each micro-batch of this rank, which returns its loss as the loop calls `backward` on it.
        tokens: Tokens or samples of each micro-batch, as for `GradientStatistics.step`.
        weighting: Weights of micro-batches, as for `GradientStatistics`.
        tolerance: Largest relative difference.

    Raises:
        InputError: if the norms differ, the model cannot be measured, or ranks have different numbers of micro-batches.
    """
    if not isinstance(model, nn.Module) or type(model).__module__.partition(".")[0] == "deepspeed":
        raise InputError("the check needs gradients that parameters have", hint="check a model under DDP or FSDP2, or on one process")
    everyone = _gathered(list(tokens), layout_of(model).group)
    if any(len(each) != len(losses) for each in everyone):
        raise InputError(f"ranks have {[*map(len, everyone)]} micro-batches", hint="give each rank as many losses, and the tokens of each")
    statistics = GradientStatistics(model, weighting=weighting)
    try:
        _run(model, losses, [1.0] * len(losses))
        statistics.step(tokens)
        (measured,) = statistics.norms
    finally:
        statistics.close()
    found = StatisticsCheck(measured=measured, direct=_direct(model, losses, everyone, equally=weighting == "equally"))
    model.zero_grad()
    if not found.error <= tolerance:
        ours, direct = found.measured, found.direct
        raise InputError(
            f"gradient statistics of this model are wrong: squared norms of micro-batches and of their mean are {ours.small:.4g} and "
            f"{ours.big:.4g}, and computed directly {direct.small:.4g} and {direct.big:.4g}",
            hint="find a hook that changes gradients, or a module that writes `.grad` itself; or train under `stagewise` or `static`",
        )
    return found


def _direct(model: nn.Module, losses: Sequence[Loss], everyone: Sequence[Sequence[float]], *, equally: bool) -> Norms:
    """Return the squared norms of the step whose gradient the model has, and of its micro-batches, each computed on its own."""
    rank = dist.get_rank(layout_of(model).group) if len(everyone) > 1 else 0
    big, small = _squared_norm(model), 0.0
    counts = [[1.0] * len(each) if equally else each for each in everyone]
    total = sum(map(sum, counts))
    for owner, shares in enumerate(counts):
        for number, share in enumerate(shares):
            _run(model, losses, [float(owner == rank and each == number) for each in range(len(losses))])
            small += _squared_norm(model) * total / share
    pairs = [(a, b) for shares, sizes in zip(counts, everyone, strict=True) for a, b in zip(shares, sizes, strict=True)]
    return Norms(
        small=small,
        big=big,
        small_tokens=total / sum(a / b for a, b in pairs),
        big_tokens=total**2 / sum(a * a / b for a, b in pairs),
    )


def _run(model: nn.Module, losses: Sequence[Loss], factors: Sequence[float]) -> None:
    """Compute the gradient of a step whose losses have these factors; each micro-batch has the same random numbers in all steps."""
    device = next(model.parameters()).device
    model.zero_grad()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for number, (loss, factor) in enumerate(zip(losses, factors, strict=True)):
            torch.manual_seed(number)
            (loss() * factor).backward()


@torch.no_grad()
def _squared_norm(model: nn.Module) -> float:
    """Return the squared norm of the model's gradient in float64."""
    gradients = (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    wholes = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in gradients)
    return sum(float(whole.double().square().sum()) for whole in wholes)


def _gathered(mine: list[float], group: dist.ProcessGroup | None) -> list[list[float]]:
    """Return the lists of all ranks."""
    if group is None:
        return [mine]
    found: list[list[float]] = [[]] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found
