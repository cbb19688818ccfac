"""Early termination (OPPA section 4.3): a trial is stopped when going on cannot change which configuration is the best.

Notation:
    q    steps that were measured, the warm-up not counted
    r    throughput of these, steps per second
"""

import math
from collections.abc import Callable, Iterable, Sequence

from scipy.stats import t as student

from oppa.errors import InputError, nearest
from oppa.problem.training import Limits
from oppa.trials.throughput import estimate, paper_estimate, warm_up_steps
from oppa.trials.watch import Judge
from oppa.tuning.designer import Observation, incumbent

Rule = Callable[[Sequence[float], float | None], bool]
"""(times of all steps so far, the incumbent's throughput) -> stop now?"""

CONFIDENCE = 0.99
TRIAL_STDDEV = 0.03
"""Two trials of one configuration differ by about this much, in log units: neither ours nor the incumbent's is its true throughput."""
TAU = 1e-3
"""Steps per second (App. G)."""
C1 = 1.0
"""For eq. 56; the paper leaves its size to a confidence level."""


def sure(limits: Limits) -> Rule:
    """Stop only what is surely behind: the upper end of its throughput's interval lies below the incumbent."""

    def rule(step_times_s: Sequence[float], incumbent: float | None) -> bool:
        if incumbent is None or not _enough(step_times_s, limits):
            return False
        seen = estimate(step_times_s)
        quantile = float(student.ppf(CONFIDENCE, max(seen.kept - 1, 1)))
        spread = math.hypot(quantile * math.sqrt(seen.variance) / seen.steps_per_s, 2 * math.sqrt(2) * TRIAL_STDDEV)
        return math.log(seen.steps_per_s) + spread < math.log(incumbent)

    return rule


def paper(limits: Limits) -> Rule:
    """Stop below the incumbent plus a constant tau (eq. 5 with App. G); it stops what is better by less than tau, too."""

    def rule(step_times_s: Sequence[float], incumbent: float | None) -> bool:
        q = len(step_times_s) - 1
        return incumbent is not None and q >= max(limits.q_min, 1) and paper_estimate(step_times_s).steps_per_s < incumbent + TAU

    return rule


def paper_bound(limits: Limits) -> Rule:
    """Stop below the incumbent plus tau_q = c_1 s (1 / sqrt(q_min) + 1 / sqrt(q)) (eq. 56)."""

    def rule(step_times_s: Sequence[float], incumbent: float | None) -> bool:
        q = len(step_times_s) - 1
        if incumbent is None or q < max(limits.q_min, 2):
            return False
        seen = paper_estimate(step_times_s)
        tau = C1 * math.sqrt(seen.variance) * (1 / math.sqrt(limits.q_min) + 1 / math.sqrt(q))
        return seen.steps_per_s < incumbent + tau

    return rule


def never(limits: Limits) -> Rule:
    """Run every trial to its end."""
    return lambda step_times_s, incumbent: False


def precise(limits: Limits) -> Rule:
    """Stop what is known well enough, whatever the others are: more steps of this trial would not tell more than another trial."""

    def rule(step_times_s: Sequence[float], incumbent: float | None) -> bool:
        if not _enough(step_times_s, limits):
            return False
        seen = estimate(step_times_s)
        return seen.kept >= limits.q_min and math.sqrt(seen.variance) / seen.steps_per_s < TRIAL_STDDEV / 3

    return rule


RULES = {"sure": sure, "paper": paper, "paper-bound": paper_bound, "never": never}


def make_rule(name: str, limits: Limits) -> Rule:
    """The rule of that name; raises InputError for an unknown one."""
    if name not in RULES:
        raise InputError(f"`stopping = {name}` is unknown", hint=nearest(name, RULES))
    return RULES[name](limits)


def against(rule: Rule, observations: Iterable[Observation]) -> Judge:
    """The rule against the configuration that would be returned now."""
    best = incumbent(observations)
    rate = math.exp(best[1]) if best else None
    return lambda step_times_s: rule(step_times_s, rate)


def _enough(step_times_s: Sequence[float], limits: Limits) -> bool:
    """q_min steps were measured, and steps stopped getting faster: a warm-up would look like a slow configuration."""
    warm_up = warm_up_steps(step_times_s)
    return len(step_times_s) - warm_up >= max(limits.q_min, 2) and len(step_times_s) >= 2 * warm_up + 1
