"""Share one budget of GPU-hours between the two sizes, and let the smaller one have a part of the trials.

The search at the smaller size gets what the trials at full size are expected to leave, and at most what they have left. Its study lies in
the folder of the full-size study, whose own budget is reduced by what it has spent.
"""

import dataclasses

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.device_budget import MOST_RESERVED
from oppa.tuning.expectation import Expectation, StartTime, expect, simulated_start
from oppa.tuning.proxy.stand_ins import Proxy
from oppa.tuning.proxy.upward import VERIFIED
from oppa.tuning.resumed_study import ResumedStudy
from oppa.tuning.spending import gpu_hours
from oppa.tuning.verification import Interval

STATED_PER_SMALLER = 3
"""Number of trials that a job states per trial at the smaller size.

Three trials at full size take some 10% of the GPU-hours of a search there. Those of the smaller size are meant to stay within 5%.
"""


def smaller_trials(trials: int) -> int:
    """Return the number of trials at the smaller size of a job that states this number, at least as many as are verified."""
    return max(VERIFIED, -(-trials // STATED_PER_SMALLER))


def limited(proxy: Proxy, problem: Problem, candidates: Candidates, *, spent_at_full_size: float) -> Problem:
    """Return the proxy's problem with its share of the job's trials and GPU-hours, each if the job states a limit.

    Args:
        spent_at_full_size: GPU-hours that earlier sessions spent at full size.
    """
    smaller, total = _with_fewer_trials(proxy.problem), problem.limits.max_gpu_hours
    if total is None:
        return smaller
    expected = verification(problem, candidates)
    needed = gpu_hours(problem.cluster, expected.break_even.search_s.value) if expected else MOST_RESERVED * total
    left = total - max(min(needed, MOST_RESERVED * total), spent_at_full_size)
    return dataclasses.replace(smaller, limits=dataclasses.replace(smaller.limits, max_gpu_hours=max(left, 0.0)))


def _with_fewer_trials(problem: Problem) -> Problem:
    trials = problem.limits.trials
    limits = dataclasses.replace(problem.limits, trials=None if trials is None else smaller_trials(trials))
    return dataclasses.replace(problem, limits=limits)


def verification(problem: Problem, candidates: Candidates, start_s: StartTime | None = None) -> Expectation | None:
    """Return the expected cost of the trials at full size, repeats included."""
    limits = dataclasses.replace(problem.limits, trials=VERIFIED, wall_time_s=None, max_gpu_hours=None)
    return expect(dataclasses.replace(problem, limits=limits), candidates, start_s=start_s)


def expected_hours(
    proxy: Proxy, problem: Problem, candidates: Candidates, *, simulated: bool, ran: ResumedStudy | None = None
) -> Interval | None:
    """Return the expected GPU-hours of both sizes together; None if the prior does not cover the job.

    Both ends of the interval assume that both sizes are at theirs.

    Args:
        ran: The study of the smaller size, of which only the rest counts; None if it has not begun.
    """
    smaller = _with_fewer_trials(proxy.problem)
    limits = dataclasses.replace(ran.left if ran else smaller.limits, repeats=0, max_gpu_hours=None)
    smaller_start_s, start_s = (simulated_start(each) if simulated else None for each in (smaller, problem))
    found = [(problem.cluster, verification(problem, candidates, start_s))]
    if ran is None or not ran.has_ended:
        searched = expect(dataclasses.replace(smaller, limits=limits), proxy.candidates, start_s=smaller_start_s)
        found.append((smaller.cluster, searched))
    parts = [(cluster, each.break_even.search_s) for cluster, each in found if each is not None]
    if len(parts) < len(found):
        return None
    ends = (sum(gpu_hours(cluster, getattr(part, end)) for cluster, part in parts) for end in ("value", "low", "high"))
    value, low, high = (min(each, problem.limits.max_gpu_hours or each) for each in ends)
    return Interval(value=value, low=low, high=high)
