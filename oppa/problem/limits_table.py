"""Validate `[limits]` of a job file: how much a study may spend, and what a device costs."""

from typing import Annotated

from pydantic import Field

from oppa.errors import JobError
from oppa.problem.bounds import LONGEST_CURRENCY, MOST_GPU_HOURS, MOST_REPEATS, MOST_STEPS
from oppa.problem.declaration import DeclaredTable, JobCount, Seconds, spell
from oppa.problem.training import FEWEST_STEPS, Limits, field_of

COMPILING_S = 600.0
"""Default `trial_time` of a trial that may compile and load for minutes, in seconds."""


class LimitsTable(DeclaredTable):
    """Validates `[limits]`."""

    trials: JobCount | None = None
    """Search trials of the study, without verification."""
    wall_time: Seconds | None = None
    """Duration of the search, over all sessions."""
    trial_time: Seconds | None = None
    """Most time of a trial; it counts if it has taken `settle` and `q_min` steps by then. `"10 min"` for your own program on GPUs."""
    q_min: int | None = Field(default=None, ge=2, le=MOST_STEPS)
    """Measured steps before a trial may end early, at least 2."""
    q_max: int | None = Field(default=None, ge=3, le=MOST_STEPS)
    """Steps of a complete trial, at least the sum of `settle` and `q_min`, and 3 after `settle`."""
    settle: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    """First steps of a trial that are not measured."""
    repeats: int | None = Field(default=None, ge=3, le=MOST_REPEATS)
    """Runs of each contender in verification, at least 3."""
    grace: Seconds | None = None
    """Time between the request to end a process and its kill."""
    device_lock: bool | None = None
    """One tuner at a time uses the devices of this host."""
    max_gpu_hours: Annotated[float, Field(gt=0, le=MOST_GPU_HOURS)] | None = None
    """Hours of all devices together, verification included."""
    price_per_gpu_hour: Annotated[float, Field(gt=0, le=MOST_GPU_HOURS)] | None = None
    """Price of one device for one hour."""
    currency: str | None = Field(default=None, min_length=1, max_length=LONGEST_CURRENCY, pattern=r"^\P{Cc}*$")
    """Currency of the price. Requires `price_per_gpu_hour`."""
    run_length: Seconds | None = None
    """Duration of the training run in its present configuration. The search ends once a trial does not pay."""

    def record(self, *, compiles: bool = False) -> Limits:
        """Return the limits.

        Args:
            compiles: Whether a trial may compile and load for minutes, as the user's own program on GPUs; its default time is longer.

        Raises:
            JobError: `q_max` leaves fewer than `q_min` or three steps, or there is a currency without a price.
        """
        given = {field_of(Limits, key): value for key, value in self.model_dump(exclude_none=True).items()}
        limits = Limits(**({"trial_time_s": COMPILING_S} if compiles else {}) | given)
        require_steps(limits)
        if self.currency is not None and self.price_per_gpu_hour is None:
            raise JobError(f"`currency = {spell(self.currency)}` has no effect without a price", hint="add `price_per_gpu_hour = ...`")
        return limits


def require_steps(limits: Limits) -> None:
    """Raise JobError if a complete trial measures fewer than `q_min` steps, or no throughput."""
    least = limits.settle + max(limits.q_min, FEWEST_STEPS)
    if limits.q_max < least:
        after = f" after `settle = {limits.settle}`" if limits.settle else ""
        message = f"`q_max = {limits.q_max}` is below `q_min = {limits.q_min}`{after}"
        if limits.q_max >= limits.settle + limits.q_min:
            message = f"`q_max = {limits.q_max}` leaves {limits.q_max - limits.settle} steps{after}, and a throughput needs {FEWEST_STEPS}"
        raise JobError(message, hint=f"use at least {least}")
