"""Stop a trial early (OPPA section 4.3) when going on cannot change which configuration is the best.

A rule measures a trial and the incumbent by the same estimator: q / sum(t), or mean(1/t) for the paper's own rules. The incumbent was
measured with noise, too, and it is the luckiest of those that are equally fast.

Notation:
    q       number of measured steps, warm-up excluded
    r       throughput over these, steps per second
    s       standard deviation of one step's 1/t, steps per second
    N       number of trials of the search
    sigma   standard deviation between trials of one configuration, as a share of r
    S, c    seconds of a trial's measured steps, and of all the rest: its start and its warm-up
    delta   probability with which the bound of Lemma F.7 may fail
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, ndtr, ndtri, stdtrit  # quantiles; scipy.stats takes a second to import

from oppa.errors import require_known
from oppa.problem.training import Limits
from oppa.trials.monitor import StopRule
from oppa.trials.throughput import SEEN, TRIAL_STDDEV, ThroughputEstimate, estimate, paper_estimate, settled, warm_up_steps
from oppa.trials.trial_folder import Outcome
from oppa.tuning.designer import Observation, standings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """Holds what earlier trials measured of the incumbent, and of noise."""

    steps_per_s: float
    log_variance: float = TRIAL_STDDEV**2
    """Variance of the logarithm of its throughput, that between trials included."""
    rivals: int = 1
    """Number of candidates that may be as fast, itself included."""
    correlation: float = 0.0
    """Correlation of neighbouring steps in complete trials."""


Stops = Callable[[Sequence[float], Incumbent | None], bool]
"""A stopping test: (times of all steps so far, the incumbent) -> stop now?"""
Completes = Callable[[Sequence[float], float], bool]
"""(times of all steps so far, seconds before the first one) -> is the trial complete now?"""


def _complete_at_the_end(step_times_s: Sequence[float], start_s: float) -> bool:
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class StopTest:
    """Holds a stopping test, the estimator of throughput that it compares by, and when a trial is complete before its last step."""

    stops: Stops
    estimate: Callable[[Sequence[float]], ThroughputEstimate] = estimate
    completes: Completes = _complete_at_the_end
    least_s: float = 0.0
    """Seconds of measured steps before which no trial of a search stops."""

    def __call__(self, step_times_s: Sequence[float], incumbent: Incumbent | None, start_s: float = 0.0) -> Outcome | None:
        """Return the outcome of a trial that stops now; None if it goes on.

        Args:
            step_times_s: Seconds of all steps so far, the first (warm-up) included, shape (1 + q,).
            incumbent: The incumbent, measured by `estimate`; None before there is one.
            start_s: Seconds from the trial's start to its first step.
        """
        if self.stops(step_times_s, incumbent):
            return "terminated_early"
        return "completed" if self.completes(step_times_s, start_s) else None


CONFIDENCE = 0.99
APART = 2.0
"""Standard deviations between two trials' throughputs beyond which one is surely slower; equally fast ones are so in 2.3% of pairs."""
LUCKIEST = 3.0
"""Standard deviations below the incumbent up to which a candidate may be as fast."""
LEAST_S = 1.0
"""Seconds of steps before which a trial goes on: less than its start takes, and some processes become faster until then."""
PRECISION = TRIAL_STDDEV / 3
"""Relative standard error of a throughput that is precise: a tenth of the variance between trials, which no further step reduces."""
SMALL = (PRECISION / TRIAL_STDDEV) ** 2
"""The same as a share of the variance between trials."""
MOST_PRECISE = 32
"""Steps after which trials whose steps vary as much as trials do are precise, however long their start is; 22 suffice."""
TAU = 1e-3
"""The constant tau, in steps per second (App. G)."""
DELTA = 0.05
"""The value of delta in Lemma F.7; the paper gives none."""
UNLIMITED = 100
"""N if the number of trials is not limited; c_1 grows only with the square root of its logarithm."""


def sure(limits: Limits) -> StopTest:
    """Stop only a trial that is surely slower: the upper end of its throughput's interval is below the incumbent.

    The incumbent is the largest of several measurements. The trial is therefore tested against each rival (Bonferroni), so that one as fast
    as the best of them hardly ever stops.
    """

    def stops(step_times_s: Sequence[float], incumbent: Incumbent | None) -> bool:
        if incumbent is None or not _enough(step_times_s, limits):
            return False
        seen = estimate(step_times_s, least_correlation=incumbent.correlation)
        degrees = _degrees_of_freedom(seen.kept, max(seen.correlation, incumbent.correlation))
        quantile = -float(stdtrit(degrees, (1 - CONFIDENCE) / incumbent.rivals))
        apart = -float(ndtri(ndtr(-APART) / incumbent.rivals))
        spread = math.hypot(
            quantile * math.sqrt(seen.variance) / seen.steps_per_s, apart * math.sqrt(TRIAL_STDDEV**2 + incumbent.log_variance)
        )
        return math.log(seen.steps_per_s) + spread < math.log(incumbent.steps_per_s)

    return StopTest(stops, least_s=LEAST_S)


def paper(limits: Limits) -> StopTest:
    """Stop below the incumbent plus a constant tau (eq. 5 with App. G). This also stops trials that are better by less than tau."""

    def stops(step_times_s: Sequence[float], incumbent: Incumbent | None) -> bool:
        q = len(step_times_s) - 1
        if incumbent is None or q < max(limits.q_min, 1):
            return False
        return paper_estimate(step_times_s).steps_per_s < incumbent.steps_per_s + TAU

    return StopTest(stops, paper_estimate)


def paper_bound(limits: Limits) -> StopTest:
    """Stop below the incumbent plus tau_q = c_1 s (1 / sqrt(q_min) + 1 / sqrt(q)) (eq. 56), with c_1 of Lemma F.7.

    The paper assumes that s is known; here the trial's own standard deviation replaces it. The bound is added to the incumbent, so a
    trial continues only while it is better by tau_q. An equally fast one is stopped.
    """
    c1 = confidence_factor(limits)

    def stops(step_times_s: Sequence[float], incumbent: Incumbent | None) -> bool:
        q = len(step_times_s) - 1
        if incumbent is None or q < max(limits.q_min, 2):
            return False
        seen = paper_estimate(step_times_s)
        tau = c1 * math.sqrt(seen.variance) * (1 / math.sqrt(limits.q_min) + 1 / math.sqrt(q))
        return seen.steps_per_s < incumbent.steps_per_s + tau

    return StopTest(stops, paper_estimate)


def confidence_factor(limits: Limits, delta: float = DELTA) -> float:
    """Return c_1 = sqrt(2 log(2 N q_max / delta)).

    All means of all trials lie within c_1 s / sqrt(q), except with probability delta (Lemma F.7).
    """
    return math.sqrt(2 * math.log(2 * (limits.trials or UNLIMITED) * limits.q_max / delta))


def never(limits: Limits) -> StopTest:
    """Run every trial to its end."""
    return StopTest(lambda step_times_s, incumbent: False)


def until_precise(limits: Limits) -> StopTest:
    """Complete a trial as soon as its throughput is precise, however fast it is: its standard error is below PRECISION."""
    return dataclasses.replace(never(limits), completes=lambda step_times_s, start_s: _steps_share(step_times_s, limits) < SMALL)


def precise(limits: Limits) -> StopTest:
    """Stop as `sure` does, and complete a trial once a second of another trial would teach more than a second of its further steps.

    A trial takes c + S seconds, and the relative variance of its throughput is sigma^2 + s^2 / (q r^2). So trials teach most per second
    where the second term is the share S / c of the first (optimum subsampling, Cochran 1977, chapter 10). The share is at least SMALL and
    at most 1. The variance of few steps is uncertain, so that its upper limit counts.
    """

    def completes(step_times_s: Sequence[float], start_s: float) -> bool:
        measured_s = sum(step_times_s[warm_up_steps(step_times_s) :])
        other_s = start_s + sum(step_times_s) - measured_s
        return _steps_share(step_times_s, limits, CONFIDENCE) < float(_optimal_share(measured_s, other_s))

    return dataclasses.replace(sure(limits), completes=completes)


def precise_after(step_s: NDArray[np.float64], start_s: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Return the measured steps after which `precise` completes trials whose steps vary as much as trials do.

    Args:
        step_s: Seconds of a step; any shape.
        start_s: Seconds before the first step, in a shape that broadcasts to that of `step_s`.

    Returns:
        Numbers of steps, at most `q_max`, in the shape of `step_s`.
    """
    least = max(limits.q_min, SEEN - 1)
    q = least + np.arange(MOST_PRECISE)
    caused = (q - 1) / chdtri(q - 1, CONFIDENCE) / q
    step_s, start_s = np.broadcast_arrays(step_s[..., None], np.asarray(start_s)[..., None])
    complete = caused < _optimal_share(q * step_s, start_s + step_s)
    return np.asarray(np.minimum(limits.q_max, least + complete.argmax(axis=-1)), dtype=np.float64)


def _optimal_share(measured_s: ArrayLike, other_s: ArrayLike) -> NDArray[np.float64]:
    """Return the share of the variance between trials that the steps of the best length of a trial cause."""
    return np.asarray(np.clip(np.asarray(measured_s) / np.asarray(other_s), SMALL, 1.0))


def _steps_share(step_times_s: Sequence[float], limits: Limits, confidence: float | None = None) -> float:
    """Return the variance of a throughput that its steps cause, over that between trials; infinite before enough were measured.

    Args:
        confidence: Probability with which the variance is below its upper limit, which counts. None takes the variance as it is.
    """
    if len(step_times_s) < SEEN or not _enough(step_times_s, limits):
        return math.inf
    seen = estimate(step_times_s)
    if seen.kept < max(limits.q_min, 2):
        return math.inf
    degrees = _degrees_of_freedom(seen.kept, seen.correlation)
    widened = 1.0 if confidence is None else degrees / float(chdtri(degrees, confidence))
    return widened * seen.variance / (seen.steps_per_s * TRIAL_STDDEV) ** 2


def _degrees_of_freedom(kept: int, correlation: float) -> float:
    """Return the degrees of freedom of the variance of steps whose neighbours correlate (Bartlett)."""
    return max(1.0, (kept - 1) * (1 - correlation**2) / (1 + correlation**2))


RULES = {"precise": precise, "sure": sure, "paper": paper, "paper-bound": paper_bound, "never": never}


def without_seconds(rule: StopTest, limits: Limits) -> StopTest:
    """Return a rule for numbers that are no seconds: no least time holds, and a precise mean completes a trial, however long its start."""
    if rule.completes is _complete_at_the_end:
        return dataclasses.replace(rule, least_s=0.0)
    return dataclasses.replace(rule, completes=lambda values, _: _steps_share(values, limits, CONFIDENCE) < SMALL, least_s=0.0)


def make_rule(name: str, limits: Limits, *, in_seconds: bool = True) -> StopTest:
    """Return the rule of that name, which gets no step before `settle`; raises InputError for an unknown one.

    Args:
        in_seconds: The numbers of steps are their seconds; False for others, such as those of an objective.
    """
    require_known(name, RULES, f"`stopping = {name}` is unknown")
    rule, settle = RULES[name](limits), limits.settle
    if not in_seconds:
        rule = without_seconds(rule, limits)
    if not settle:
        return rule
    return StopTest(
        lambda step_times_s, incumbent: rule.stops(step_times_s[settle:], incumbent),
        lambda step_times_s: rule.estimate(settled(step_times_s, settle)),
        lambda step_times_s, start_s: rule.completes(step_times_s[settle:], start_s + sum(step_times_s[:settle])),
        rule.least_s,
    )


def against(rule: StopTest, observations: Iterable[Observation]) -> StopRule:
    """Return a stop rule that compares a trial with the incumbent, both by the rule's own estimator.

    No trial stops before it has taken `least_s` seconds of steps.
    """
    best = _incumbent(rule, observations)
    return lambda step_times_s, start_s: rule(step_times_s, best, start_s) if sum(step_times_s[1:]) >= rule.least_s else None


def _incumbent(rule: StopTest, observations: Iterable[Observation]) -> Incumbent | None:
    """Return the incumbent by the rule's estimator, as the machine would show it now; None before a trial ran to its end."""
    judged, estimates = list[Observation](), defaultdict[int, list[ThroughputEstimate]](list)
    for seen in observations:
        if seen.measured and len(seen.step_times_s) > 1:
            own = rule.estimate(seen.step_times_s)
            estimates[seen.candidate].append(own)
            judged.append(dataclasses.replace(seen, log_steps_per_s=math.log(own.steps_per_s) - seen.drift))
        else:
            judged.append(seen)
    if not (rates := standings(judged)):
        return None
    best, rate = next(iter(rates.items()))
    of_best = estimates[best]
    of_steps = statistics.fmean(each.variance / each.steps_per_s**2 for each in of_best) if of_best else 0.0
    variance = (TRIAL_STDDEV**2 + of_steps) / max(1, len(of_best))
    nearest = rate - LUCKIEST * math.sqrt(TRIAL_STDDEV**2 + variance)
    return Incumbent(
        steps_per_s=math.exp(rate),
        log_variance=variance,
        rivals=sum(each >= nearest for each in rates.values()),
        correlation=statistics.median([each.correlation for candidate in rates for each in estimates[candidate]] or [0.0]),
    )


def _enough(step_times_s: Sequence[float], limits: Limits) -> bool:
    """Return whether q_min steps were measured, and steps no longer get faster. A warm-up would look like a slow configuration."""
    warm_up = warm_up_steps(step_times_s)
    return len(step_times_s) - warm_up >= max(limits.q_min, 2) and len(step_times_s) >= 2 * warm_up + 1
