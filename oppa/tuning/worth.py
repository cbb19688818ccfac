"""Tell whether the next trial of a search pays for the run that follows.

A trial pays if the run is expected to get shorter by more than the trial takes. Both use the same devices, so seconds compare. The designer
states by how much a trial is expected to speed up its choice. Expected improvement is compared with its cost, as proposed by Xie et al.
(2025), "Cost-aware Stopping for Bayesian Optimization".

Notation:
    run      seconds of the run in its present configuration: `run_length`
    rest     seconds of the run with the fastest configuration so far: run * present rate / fastest rate; the run if the first is unknown
    gain     share by which the trial is expected to speed up the choice
    saved    rest * gain / (1 + gain)
    trial    a start as long as the median one so far, and as many steps as the median trial took, at the predicted rate
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.tuning.designer import Designer, Observation, Valued, incumbent, measured_rates
from oppa.units import format_seconds


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

    It is unknown if no length of the run is stated, if nothing ran to its end yet, or if the designer tells no expectation.
    """
    best, rest_s = incumbent(seen), _rest_s(problem, candidates, seen)
    if best is None or rest_s is None or not isinstance(designer, Valued):
        return None
    gain, prediction = designer.expected_gain(candidate), designer.predict(candidate)
    if gain is None or prediction is None:
        return None
    return TrialWorth(saved_s=rest_s * gain / (1 + gain), trial_s=_trial_s(prediction, seen))


def _rest_s(problem: Problem, candidates: Candidates, seen: Sequence[Observation]) -> float | None:
    """Return the seconds of the run with the fastest configuration so far; None if nothing states them."""
    best = incumbent(seen)
    if best is None:
        return None
    candidate, log_rate = best
    run_s, samples = problem.limits.run_length_s, problem.run_options.samples
    if run_s is None:
        return None if samples is None else samples / candidates.configuration(candidate).global_batch / math.exp(log_rate)
    present = None if problem.baseline is None else measured_rates(seen).get(candidates.index_of(problem.baseline))
    return run_s if present is None else run_s * math.exp(min(0.0, present - log_rate))


def _trial_s(prediction: Prediction, seen: Sequence[Observation]) -> float:
    measured = [each for each in seen if each.measured]
    start_s = statistics.median(max(0.0, each.seconds - sum(each.step_times_s)) for each in measured)
    return start_s + statistics.median(len(each.step_times_s) for each in measured) / prediction.steps_per_s
