"""Let an engine's learning rate follow the samples: its schedule at the plan's progress, times the plan's factor."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from oppa_client.loop import rates
from oppa_client.plan import Plan


class SampleRates:
    """Sets the learning rates of an engine's parameter groups before each step.

    Args:
        engine: Its `lr_scheduler` is None, a `LambdaLR`, or one of DeepSpeed's own, such as `WarmupDecayLR`. It is not loaded yet, so that
            its groups have the learning rates that the program chose.
        reference: Samples of a step of the schedule.

    Raises:
        ContractError: the schedule is no function of the progress.
    """

    def __init__(self, engine: Any, reference: float) -> None:
        self._groups, self._reference = engine.basic_optimizer.param_groups, reference
        self._schedule = engine.lr_scheduler or rates.constant(engine.basic_optimizer)
        if not hasattr(self._schedule, "last_batch_iteration"):
            rates.require_lambda(self._schedule)

    def follow(self, plan: Plan) -> float:
        """Set the learning rates of a step, and return that of the first group."""
        at, factor = plan.progress / self._reference, plan.learning_rate_factor
        if isinstance(self._schedule, LambdaLR):
            return rates.follow(self._schedule, at, factor)
        self._schedule.step(max(0.0, at - 1))  # DeepSpeed's schedules are one step behind: they count the steps that have ended
        for group, rate in zip(self._groups, self._schedule.get_last_lr()):
            group["lr"] = rate * factor
        return float(self._groups[0]["lr"])
