"""Decides whether another trial pays: by what it is expected to save of the training run, against the time of the shortest trial.

Notation:
    T    seconds of the training run in the reference configuration
    v    speed-up of the present choice over the reference
    g    expected gain of the trial: by how much it speeds up the choice, as a share
    c    seconds of the shortest trial that shows something

With the present choice the run takes T / v, so the trial saves T / v * g / (1 + g). It pays if that is more than c. The designer suggests
the trial of the largest gain, and none is shorter than c: if it does not pay, no other does. Among independent candidates, a search that
ends then is the best there is (Weitzman 1979, "Optimal search for the best alternative").
"""

import math
import statistics
from collections.abc import Sequence, Set
from typing import Protocol, runtime_checkable

from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Prediction
from oppa.tuning.designer import Designer, Observation, incumbent
from oppa.tuning.result import usual_order
from oppa.units import format_seconds

REFERENCES = 6
"""Defaults among which the reference is looked for, as many as verification tries."""
EARLY = 2
"""Steps beyond `q_min` that a trial takes until it ends early."""


@runtime_checkable
class Valuing(Protocol):
    """A designer that values trials."""

    def gain(self, candidate: int) -> float:
        """Return by how much a trial of the candidate is expected to speed up the choice after it, as a share."""
        ...


class PayingDesigner:
    """Wraps a designer so that it suggests nothing once no further trial pays for a run of stated length."""

    def __init__(self, designer: Designer, problem: Problem, candidates: Candidates) -> None:
        self._designer, self._problem, self._candidates = designer, problem, candidates
        self._seen: list[Observation] = []
        self.reason = ""
        """Why nothing was suggested, in words, if the designer's last suggestion did not pay; else empty."""

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the designer's suggestion; None if it does not pay."""
        candidate = self._designer.suggest(taken)
        self.reason = ""
        if candidate is not None and not pays(self._designer, candidate, self._seen, self._problem, self._candidates):
            self.reason = f"no further trial is expected to pay for a run of {format_seconds(self._problem.limits.run_length_s or 0)}"
        return None if self.reason else candidate

    def predict(self, candidate: int) -> Prediction | None:
        """Return the designer's prediction."""
        return self._designer.predict(candidate)

    def update(self, observations: Sequence[Observation]) -> None:
        """Pass the observations on to the designer."""
        self._seen += observations
        self._designer.update(observations)


def pays(
    designer: Designer,
    candidate: int,
    seen: Sequence[Observation],
    problem: Problem,
    candidates: Candidates,
    *,
    run_s: float | None = None,
) -> bool:
    """Return whether a trial is expected to pay; True where that is unknown, and before anything ran to its end.

    Args:
        run_s: Seconds of the run in the reference configuration; None: `run_length` of the job, if it states one.
    """
    run_s, choice = run_s or problem.limits.run_length_s, incumbent(seen)
    if run_s is None or choice is None or not isinstance(designer, Valuing):
        return True
    if designer.predict(candidate) is None:
        return True
    gain, speed_up = designer.gain(candidate), math.exp(choice[1]) / _reference_rate(designer, problem, candidates)
    return run_s / max(1.0, speed_up) * gain / (1 + gain) > least_s(seen, problem, log_incumbent=choice[1])


def least_s(seen: Sequence[Observation], problem: Problem, *, log_incumbent: float) -> float:
    """Return the seconds of the shortest trial that shows something: its start, and steps until it ends early.

    Args:
        log_incumbent: Log throughput of the present choice.
    """
    limits = problem.limits
    start_s = statistics.median(trial.seconds - sum(trial.step_times_s) for trial in seen)
    return min(limits.trial_time_s, start_s + min(limits.q_max, limits.q_min + EARLY) / math.exp(log_incumbent))


def _reference_rate(designer: Designer, problem: Problem, candidates: Candidates) -> float:
    """Return the throughput that is predicted for the reference: the baseline, else the first default that is predicted to fit."""
    order = usual_order(candidates, problem.baseline)[:REFERENCES]
    predictions = [found for index in order if (found := designer.predict(index))]
    fitting = (found for found in predictions if (found.memory_bytes or 0) <= problem.cluster.usable_bytes)
    return next(fitting, predictions[0]).steps_per_s
