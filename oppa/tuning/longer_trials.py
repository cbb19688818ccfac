"""Compute the time limit of trials that take more steps than those of their study, as a verification may."""

import math
from collections.abc import Collection

from oppa.errors import InputError
from oppa.problem.training import Limits
from oppa.study import Trial
from oppa.units import format_seconds

ROOM = 1.5
"""Factor of the expected time of a trial in the time limit that is proposed for it."""


def whole_trial_s(trial: Trial, steps: int) -> float:
    """Return the seconds of a trial of so many steps, set-up included, at the pace of a trial that was measured."""
    assert trial.steps_per_s is not None
    setup_s = trial.setup_s or 0.0
    # The rate is no pace if the program prints another objective, and the clock contains the end of the trial's processes.
    return setup_s + steps * min(1 / trial.steps_per_s, (trial.seconds - setup_s) / max(1, len(trial.step_times_s)))


def proposed_trial_time(trials: Collection[Trial], steps: int) -> str:
    """Return a `trial_time`, in whole minutes, in which a trial of each of these configurations takes so many steps."""
    longest_s = max(whole_trial_s(trial, steps) for trial in trials)
    return f"{math.ceil(ROOM * longest_s / 60)}min"


def require_fitting(trials: Collection[Trial], limits: Limits) -> None:
    """Refuse limits in which a configuration cannot take its steps.

    Raises:
        InputError: `q_max` steps at the measured step time take longer than `trial_time`.
    """
    slowest = max(trials, key=lambda trial: whole_trial_s(trial, limits.q_max))
    seconds = whole_trial_s(slowest, limits.q_max)
    if seconds > limits.trial_time_s:
        message = f"`q_max = {limits.q_max}` steps of {slowest.configuration.id} take {format_seconds(seconds)}"
        hint = f"add `--set limits.trial_time={proposed_trial_time(trials, limits.q_max)}`, or set a smaller `limits.q_max`"
        raise InputError(f"{message}, but `trial_time` is {format_seconds(limits.trial_time_s)}", hint=hint)
