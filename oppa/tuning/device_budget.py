"""Keep a study within `max_gpu_hours`: each trial is granted its seconds before it starts, and verification has its share reserved.

The study's file holds the grants, so that tuners which share a study also share its budget, and sessions add up. A trial that reaches the
end of its grant is ended in time for its processes to be gone by then. What it leaves of the grant is free for the next trial.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.problem.problem import Problem
from oppa.study import Prediction, Study, Trial
from oppa.study.records import SEARCH, TimeBudget
from oppa.tuning.spending import HOUR_S, gpu_hours, starting_s, unit
from oppa.units import format_hours, format_seconds, with_noun

LEAST_START_S = 1.0
"""Start-up of a trial before one was seen; none takes less, but for a warm process on CPUs."""
MOST_RESERVED = 0.75
"""Largest share of the budget that is reserved for verification, so that a small budget leaves something to verify."""
ROUNDING_S = 1e-3
"""Seconds by which sums of clock times may differ from what was granted."""
CONTENDERS = 3
"""Configurations that verification compares: the winner, the second, and the reference."""
VARIATION = 1.1
"""Factor by which a repeat may take longer than its configuration's first trial."""
UNPREDICTED = 2.0
"""Factor by which a reference that nobody predicts may take longer than the slowest contender."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBudget:
    """Applies the budget of a study in one tuner."""

    problem: Problem
    study: Study
    ending_s: float
    """Seconds that the processes of a trial may need to end."""
    elsewhere_s: float = 0.0
    """Seconds of all devices that another part of the study has spent of the limit."""

    @property
    def total_s(self) -> float | None:
        """Return the seconds in which the study may hold all devices of its cluster; None without a limit."""
        total = total_s(self.problem)
        return None if total is None else max(0.0, total - self.elsewhere_s)

    def request(self, trials: Sequence[Trial], *, most_s: float, steps_s: float = 0.0, reserved_s: float = 0.0) -> TimeBudget | None:
        """Return the request for a trial's share; None without a limit.

        Args:
            trials: Trials of the study, whose start-up is the measure of the next one's.
            most_s: Seconds after which the trial is ended in any case.
            steps_s: Seconds of the steps without which the trial is not begun.
            reserved_s: Seconds that later trials need.
        """
        if (total := self.total_s) is None:
            return None
        return TimeBudget(
            total_s=total,
            reserved_s=min(reserved_s, MOST_RESERVED * total),
            least_s=startup_s(trials) + steps_s + self.ending_s,
            most_s=most_s + self.ending_s,
        )

    def allows(self, request: TimeBudget | None) -> bool:
        """Return whether the study has as much left as a trial needs."""
        return request is None or request.granted_s(self.study.held_time()) is not None

    def must_release(self) -> bool:
        """Return whether this tuner must release its hosts instead of waiting: they were granted after the budget was committed."""
        return self.total_s is not None and self.study.holds and self.study.committed_s() > self.total_s + ROUNDING_S

    def spent_in_words(self) -> str:
        """Return the reason why no further trial starts."""
        return f"the budget of {limit_in_words(self.problem)} is spent"


def limit_in_words(problem: Problem) -> str:
    """Return the limit as text; the job must state one."""
    return f"{problem.limits.max_gpu_hours:,g} {unit(problem.cluster)}"


def total_s(problem: Problem) -> float | None:
    """Return the seconds in which a study may hold all devices of its cluster; None without a limit."""
    limit = problem.limits.max_gpu_hours
    return None if limit is None else limit * HOUR_S / problem.cluster.devices


def require_one_start(problem: Problem) -> None:
    """Raise InputError if `max_gpu_hours` ends before a first trial could start."""
    total = total_s(problem)
    if total is not None and total < LEAST_START_S:
        cluster, limit = problem.cluster, problem.limits.max_gpu_hours
        lasts = f"lasts {format_seconds(total)} on {with_noun(cluster.devices, 'device')}"
        raise InputError(
            f"`max_gpu_hours = {limit:g}` {lasts}, and no trial starts in that time",
            hint=f"raise it: 20 trials of one minute take {format_hours(gpu_hours(cluster, 20 * 60.0))} {unit(cluster)}",
        )


def startup_s(trials: Sequence[Trial]) -> float:
    """Return the seconds that a trial is expected to take to start: the median of those seen."""
    seen = sorted(starting_s(trial) for trial in trials if trial.setup_s is not None)
    return seen[len(seen) // 2] if seen else LEAST_START_S


def complete_s(prediction: Prediction | None, trials: Sequence[Trial], problem: Problem) -> float | None:
    """Return the predicted seconds of a complete trial; None without a prediction, or if its rate states no seconds."""
    if prediction is None or not problem.rates_are_steps:
        return None
    return min(problem.limits.trial_time_s, startup_s(trials) + problem.limits.q_max / prediction.steps_per_s)


def step_s(trial: Trial, problem: Problem) -> float | None:
    """Return the seconds of a trial's step: those of its rate, or by the clock where rates state none; None if it measured nothing."""
    if not trial.steps_per_s:
        return None
    return 1 / trial.steps_per_s if problem.rates_are_steps else (trial.seconds - (trial.setup_s or 0.0)) / max(1, len(trial.step_times_s))


def worthwhile_s(prediction: Prediction | None, trials: Sequence[Trial], problem: Problem) -> float:
    """Return the seconds of steps without which a search trial is not begun, because the budget would end it without a result.

    They are those of as many steps as the median complete trial took, which its rule may have ended before `q_max`. Before there is one,
    predictions may be far off, and the first steps are enough. No trial takes longer than its limit.
    """
    limits, timed_s = problem.limits, [each for trial in trials if (each := step_s(trial, problem)) is not None]
    taken = [len(trial.step_times_s) for trial in trials if trial.outcome == "completed" and trial.purpose == SEARCH]
    steps = statistics.median(taken) if taken else limits.settle + limits.q_min + 1
    if prediction is not None and problem.rates_are_steps:
        each_s = 1 / prediction.steps_per_s
    else:
        each_s = statistics.median(timed_s) if timed_s else 0.0
    return min(steps * each_s, max(0.0, limits.trial_time_s - startup_s(trials)))
