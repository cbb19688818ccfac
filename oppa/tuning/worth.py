"""Predict whether the next trial of a search pays for the run that follows.

A trial pays if the run is expected to get shorter by more than the trial takes. Both use the same devices, so seconds compare. The designer
states by how much a trial is expected to speed up its choice. Expected improvement is compared with its cost, as proposed by Xie et al.
(2025), "Cost-aware Stopping for Bayesian Optimization".

Notation:
    run      seconds of the run in its present configuration, the baseline or the default: `run_length`
    rest     seconds of the run with the fastest configuration so far: run * present rate / fastest rate
    gain     share by which the trial is expected to speed up the choice
    saved    rest * gain / (1 + gain); where the gain is uncertain it is an upper bound, so a search ends rather late than early
    fits     probability that the configuration fits in memory; 1 if it was measured before
    trial    a start as long as the median one so far, and, if it fits, as many steps as the median trial took, at the predicted rate
"""

import dataclasses
import math
from collections.abc import Sequence

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.comparison import reference_order
from oppa.tuning.designer import Designer, Observation, Valued, incumbent, measured_rates
from oppa.tuning.trial_length import TrialLength
from oppa.units import format_seconds

DEFAULTS = 16
"""Defaults among which the present configuration of a job without a baseline is sought."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialWorth:
    """Holds what a trial is expected to save and to take."""

    saved_s: float
    trial_s: float

    @property
    def pays(self) -> bool:
        """Return whether the trial is expected to save at least what it takes."""
        return self.saved_s >= self.trial_s

    def in_words(self) -> str:
        """Return why a search ends before this trial."""
        takes, saves = (format_seconds(seconds) for seconds in (self.trial_s, self.saved_s))
        return f"a further trial takes {takes}, and is expected to save {saves} of the run"


def worth_of(
    problem: Problem, candidates: Candidates, designer: Designer, seen: Sequence[Observation], candidate: int
) -> TrialWorth | None:
    """Return the worth of the trial that a designer suggests; None if that is unknown.

    It is unknown if no length of the run is stated, if nothing ran to its end yet, or if the designer states no expectation. So it is where
    rates state no seconds, as those of an objective other than throughput.
    """
    best = incumbent(seen)
    if not problem.rates_are_steps or best is None or not isinstance(designer, Valued):
        return None
    if (rest_s := _rest_s(problem, candidates, designer, seen, best)) is None:
        return None
    gain, prediction, length = designer.expected_gain(candidate), designer.predict(candidate), TrialLength.of(seen)
    if gain is None or prediction is None or length is None:
        return None
    fits = 1.0 if candidate in measured_rates(seen) or prediction.probability_fits is None else prediction.probability_fits
    return TrialWorth(saved_s=rest_s * gain / (1 + gain), trial_s=length.seconds(1 / prediction.steps_per_s, fits))


def _rest_s(
    problem: Problem, candidates: Candidates, designer: Designer, seen: Sequence[Observation], best: tuple[int, float]
) -> float | None:
    """Return the seconds of the run with the fastest configuration so far; None if nothing states them."""
    candidate, log_rate = best
    run_s, samples = problem.limits.run_length_s, problem.run_options.samples
    if run_s is None:
        return None if samples is None else samples / candidates.configuration(candidate).global_batch / math.exp(log_rate)
    return run_s * math.exp(min(0.0, _present_log_rate(problem, candidates, designer, seen) - log_rate))


def _present_log_rate(problem: Problem, candidates: Candidates, designer: Designer, seen: Sequence[Observation]) -> float:
    """Return the log throughput of the baseline, or else of the first default that runs or is predicted to fit; inf if there is none."""
    measured, tried = measured_rates(seen), {each.candidate for each in seen}
    for candidate in reference_order(candidates, problem.baseline)[:DEFAULTS]:
        if candidate in measured:
            return measured[candidate]
        expected = None if candidate in tried else designer.predict(candidate)
        if expected is not None and expected.fits(problem.cluster.usable_bytes):
            return math.log(expected.steps_per_s)
    return math.inf
