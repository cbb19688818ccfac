"""Let torchtitan's learning rates follow the samples: its schedule at the plan's progress, times the plan's factor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from oppa_client.loop.rates import follow, require_lambda
from oppa_client.plan import Plan


class ScheduledRates:
    """Sets the learning rates of all optimizers before each step.

    Args:
        schedulers: torchtitan's `LRSchedulersContainer`.
        reference: Samples of a step of the schedule.
    """

    def __init__(self, schedulers: Any, reference: float) -> None:
        self._schedules, self._reference = list(schedulers), reference
        for schedule in self._schedules:
            require_lambda(schedule)
            schedule.lr_lambdas = [functools.partial(_at_most_1, each) for each in schedule.lr_lambdas]

    def follow(self, plan: Plan) -> float:
        """Set the learning rates of a step, and return that of the first group."""
        at = plan.progress / self._reference
        rates = [follow(schedule, at, plan.learning_rate_factor) for schedule in self._schedules]
        return rates[0]


def _at_most_1(given: Callable[[float], float], at: float) -> float:
    """Return the factor of torchtitan's schedule, whose warm-up is too large between its last two whole steps."""
    return min(1.0, given(at))
