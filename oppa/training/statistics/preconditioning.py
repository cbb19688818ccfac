"""Compute gradient norms in the coordinates of Adam, for the pre-conditioned noise scale (COPUS, section 6.6).

Adam's step is P g with P = 1 / (sqrt(v) + eps). In the coordinates in which this is plain gradient descent, the gradient is P^(1/2) g. Its
squared norm is the sum of g^2 / (sqrt(v) + eps), so that noise counts by how far it moves the weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oppa.errors import InputError
from oppa.training.parallel.gradient_layout import GradientLayout
from oppa.training.statistics.gradient_norms import Norm
from oppa.training.torch_internals import ZeroRedundancyOptimizer


def preconditioned_norm(optimizer: torch.optim.Optimizer, layout: GradientLayout) -> Callable[[nn.Parameter], Norm]:
    """Return a function that gives each parameter its norm in the coordinates of an Adam or AdamW; NaN until its first step.

    Raises:
        InputError: if ZeRO shards the optimizer's state, so that a rank lacks denominators, or the optimizer has no second moments.
    """
    sharded = any(isinstance(parameter, DTensor) for module, _ in layout.parts for parameter in module.parameters())
    if sharded or isinstance(optimizer, ZeroRedundancyOptimizer):
        raise InputError("the pre-conditioned noise scale needs the whole optimizer state, which ZeRO shards", hint="set `zero_stage = 0`")
    if not all("betas" in group for group in optimizer.param_groups):
        raise InputError(
            f"`{type(optimizer).__name__}` has no second moments for the pre-conditioned noise scale", hint="use Adam or AdamW"
        )
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    return lambda parameter: functools.partial(_norm, optimizer, groups[id(parameter)], parameter)


def _norm(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter, gradient: Tensor, out: Tensor) -> None:
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" not in state:
        out.fill_(torch.nan)
        return
    correction = 1 - group["betas"][1] ** torch.as_tensor(state["step"], device=gradient.device)
    denominator = (state["exp_avg_sq"] / correction).sqrt_().add_(group["eps"])
    out.copy_(gradient.to(denominator.dtype).square().div_(denominator).sum().sqrt_())
