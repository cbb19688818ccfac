"""Limit the time of a trial by its prediction."""

import math
from collections.abc import Sequence

from oppa.problem.training import Limits
from oppa.study import Prediction, Trial
from oppa.study.records import MEASURED
from oppa.trials.trial import TrialResult
from oppa.tuning.spending import starting_s

UNTIMED_STEPS = 3
"""Steps that a runner may need before the first that it reports, some of them to measure memory."""
SLOWER = 5.0
"""Allowed ratio of a step time to its prediction, or more if the 99.9% interval reaches further; beyond that, something is broken."""
SETUP_S = 60.0
SETUPS = 4.0
"""A set-up may take SETUP_S; once others are known, SETUPS times the longest of them plus ten seconds."""
COLD = 3.0
"""Factor of the job's limit, and of SETUP_S, for a trial that fills caches: it compiles, builds indices of data, and reads cold files."""


def time_limit_s(prediction: Prediction | None, trials: Sequence[Trial | TrialResult], limits: Limits, *, cold: bool = False) -> float:
    """Return the seconds after which a trial is ended: the limit by its prediction, but at most the job's own limit.

    Args:
        trials: Earlier trials, from whose set-ups that of the next is estimated.
        cold: No trial has filled the caches of the program yet, so it may need COLD times as long.
    """
    longer = COLD if cold else 1.0
    if prediction is None:
        return longer * limits.trial_time_s
    # A program that prints no times has its imports in its first step, and one that compiles does that in its first steps.
    seen = [max(trial.setup_s, starting_s(trial), _outside_s(trial)) for trial in trials if trial.setup_s is not None]
    setup_s = SETUPS * max(seen) + 10.0 if seen else longer * SETUP_S
    step_s = max(SLOWER, math.exp(3.1 * prediction.log_stddev)) / prediction.steps_per_s
    return min(longer * limits.trial_time_s, setup_s + (limits.q_max + UNTIMED_STEPS) * step_s)


def _outside_s(trial: Trial | TrialResult) -> float:
    """Return the seconds of a measured trial outside its steps: pauses, and the steps themselves if their times are those of a token."""
    return trial.seconds - sum(trial.step_times_s) if trial.outcome in MEASURED else 0.0
