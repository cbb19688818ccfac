"""Let an engine's learning rate follow the samples: its schedule at the plan's progress, times the plan's factor."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from oppa_client.plan import Plan
from oppa_client.run_files import ContractError


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
        self._groups, self._schedule, self._reference = engine.optimizer.param_groups, engine.lr_scheduler, reference
        self._base = [float(group["lr"]) for group in self._groups]
        known = self._schedule is None or isinstance(self._schedule, LambdaLR) or hasattr(self._schedule, "last_batch_iteration")
        if not known:
            name = type(self._schedule).__name__
            raise ContractError(f"the schedule `{name}` is no function of the progress: use a `LambdaLR`, or one of DeepSpeed's own")

    def follow(self, plan: Plan) -> float:
        """Set the learning rates of a step, and return that of the first group."""
        rates = [rate * plan.learning_rate_factor for rate in self._scheduled(plan.progress / self._reference)]
        for group, rate in zip(self._groups, rates):
            group["lr"] = rate
        return rates[0]

    def _scheduled(self, at: float) -> list[float]:
        schedule = self._schedule
        if schedule is None:
            return self._base
        if isinstance(schedule, LambdaLR):
            schedule.last_epoch = at
            return [base * of(at) for base, of in zip(schedule.base_lrs, schedule.lr_lambdas)]
        schedule.step(max(0.0, at - 1))  # DeepSpeed's schedules are one step behind: they count the steps that have ended
        return [float(rate) for rate in schedule.get_last_lr()]
