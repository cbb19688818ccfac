"""Set the learning rate of a step: the schedule at the progress in samples, times the plan's factor."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from oppa_client.run_files import ContractError


def require_lambda(schedule: Any) -> None:
    """Raise ContractError if a schedule is no function of the progress."""
    if not isinstance(schedule, LambdaLR):
        name = type(schedule).__name__
        raise ContractError(
            f"the schedule `{name}` is no function of the progress: use a `LambdaLR`, as `lr_scheduler_type = 'cosine'` of Transformers is"
        )


def constant(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Return the schedule of an optimizer that has none: its present learning rates, for ever."""
    return LambdaLR(optimizer, [_always] * len(optimizer.param_groups))


def _always(at: float) -> float:
    return 1.0


def follow(schedule: LambdaLR, at: float, factor: float) -> float:
    """Set the learning rates of a step, and return that of the first group.

    Args:
        schedule: Schedule of the optimizer.
        at: Its argument, which may lie between two whole numbers.
        factor: Factor of the plan.
    """
    schedule.last_epoch = at  # type: ignore[assignment]
    rates = [base * of(at) for base, of in zip(schedule.base_lrs, schedule.lr_lambdas)]  # type: ignore[arg-type,operator,unused-ignore]
    schedule._last_lr = [rate * factor for rate in rates]
    for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr):
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return float(schedule._last_lr[0])
