"""Define a designer, which suggests the next configuration and learns from the outcomes of trials."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence, Set
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.study import Prediction, Trial
from oppa.study.records import MEASURED
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Holds the outcome of a candidate's trial, in the form that models use."""

    candidate: int
    outcome: Outcome
    log_steps_per_s: float | None
    log_variance: float | None
    """Variance of `log_steps_per_s` (delta method: the relative variance of the throughput)."""
    memory_bytes: int | None
    prediction: Prediction | None = None
    """The prediction made before the trial."""
    step_times_s: tuple[float, ...] = ()
    """Seconds of each step, the first (warm-up) included."""
    seconds: float = 0.0
    """Seconds from the start of the trial until nothing of it was left."""
    drift: float = 0.0
    """Drift of the machine that was taken off `log_steps_per_s`, and not off the times of the steps."""

    @property
    def measured(self) -> bool:
        """Return whether the trial has a throughput."""
        return self.log_steps_per_s is not None

    @classmethod
    def of(cls, trial: Trial, candidates: Candidates, *, offset: float = 0.0) -> Self:
        """Convert a trial of one of the candidates; `offset` is the drift of log throughput that is taken off."""
        seen = cls.of_result(
            candidates.index_of(trial.configuration), trial, rate=trial.steps_per_s, variance=trial.variance, prediction=trial.prediction
        )
        log_rate = seen.log_steps_per_s
        return seen if log_rate is None else dataclasses.replace(seen, log_steps_per_s=log_rate - offset, drift=offset)

    @classmethod
    def of_result(
        cls, candidate: int, result: Trial | TrialResult, *, rate: float | None, variance: float | None, prediction: Prediction | None
    ) -> Self:
        """Convert a trial's result.

        Args:
            rate: The measured throughput, steps per second; None if nothing was measured.
            variance: The variance of the rate, (steps per second)^2.
        """
        return cls(
            candidate=candidate,
            outcome=result.outcome,
            log_steps_per_s=math.log(rate) if rate else None,
            log_variance=variance / rate**2 if rate and variance is not None else None,
            memory_bytes=result.memory_bytes,
            prediction=prediction,
            step_times_s=result.step_times_s,
            seconds=result.seconds,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Holds a profile's estimate of one candidate: log-normal throughput, and peak memory."""

    candidate: int
    log_rate: float
    """Mean of the logarithm of steps per second."""
    log_stddev: float
    memory_bytes: int | None
    measured: bool


def by_candidate(observations: Iterable[Observation]) -> dict[int, list[Observation]]:
    """Group observations by candidate, in the order in which the candidates were first tried."""
    trials: dict[int, list[Observation]] = {}
    for seen in observations:
        trials.setdefault(seen.candidate, []).append(seen)
    return trials


def standing(trials: Sequence[Observation]) -> float | None:
    """Return a candidate's log throughput: the mean over its measured trials.

    None if the candidate may not be returned as the best: no trial of it ran to its end, or one ran out of memory. A trial without a
    throughput did not.
    """
    known = [seen.log_steps_per_s for seen in trials if seen.log_steps_per_s is not None]
    ended = any(seen.outcome == "completed" and seen.measured for seen in trials)
    return statistics.fmean(known) if ended and all(seen.outcome != "out_of_memory" for seen in trials) else None


def standings(observations: Iterable[Observation]) -> dict[int, float]:
    """Return the candidates that may be returned as the best, fastest first, with their log throughput."""
    known = {candidate: value for candidate, trials in by_candidate(observations).items() if (value := standing(trials)) is not None}
    return dict(sorted(known.items(), key=lambda each: -each[1]))


def measured_rates(observations: Iterable[Observation]) -> dict[int, float]:
    """Return the candidates that were measured, fastest first, with the mean log throughput of their trials, ended early or not."""
    rates = {
        candidate: statistics.fmean(known)
        for candidate, trials in by_candidate(observations).items()
        if (known := [seen.log_steps_per_s for seen in trials if seen.outcome in MEASURED and seen.log_steps_per_s is not None])
    }
    return dict(sorted(rates.items(), key=lambda each: -each[1]))


def incumbent(observations: Iterable[Observation]) -> tuple[int, float] | None:
    """Return the best candidate so far, and its log throughput; None before one ran to its end."""
    return next(iter(standings(observations).items()), None)


class Designer(Protocol):
    """Chooses what to try. Every designer gets the same candidates and the same observations."""

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the number of the next candidate; None if none is left.

        It is outside `taken`, the candidates that were tried or are running. Or it ran to its end before, and is to be measured again.
        """

    def predict(self, candidate: int) -> Prediction | None:
        """Return the prediction for a trial of the candidate; None without a model."""

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from trials that ended. Each is passed once, and interrupted ones never."""


@runtime_checkable
class Restated(Protocol):
    """Replaces what a designer has learned, for example when a drift of the machine was found. Designers may have this method."""

    def restate(self, observations: Sequence[Observation]) -> None:
        """Forget all observations, and learn these in their place."""


@runtime_checkable
class Concurrent(Protocol):
    """Considers trials that run meanwhile on other hosts. Designers may have this method."""

    def suggest_with_pending(self, running: Set[int], taken: Set[int]) -> int | None:
        """Return the next candidate, as `suggest` does, while trials of the candidates `running` have not ended yet."""


@runtime_checkable
class Valued(Protocol):
    """Predicts the gain of a trial. Designers may have this method."""

    def expected_gain(self, candidate: int) -> float | None:
        """Return the share by which a trial of the candidate is expected to speed up the choice; None before anything ran to its end."""


@runtime_checkable
class Explained(Protocol):
    """States why it suggests nothing more. Designers may have this method."""

    def reason_to_end(self, skipped: int) -> str:
        """Return in words why `suggest` returned None, though `skipped` candidates were not tried."""


def short_of_memory(skipped: int) -> str:
    """Return the reason to end of a designer that expects all other candidates to run out of memory."""
    return f"nothing is left to try: the other {skipped} configurations are expected to run out of memory"


def free(size: int, taken: Set[int]) -> NDArray[np.int64]:
    """Return the numbers of those of `size` candidates that are not taken, ascending."""
    untaken = np.ones(size, dtype=bool)
    untaken[list(taken)] = False
    return np.flatnonzero(untaken)


def groups(candidates: Candidates, names: Sequence[str]) -> NDArray[np.intp]:
    """Return the number of each candidate's combination of values, counted from 0, shape (N,).

    Parameters that the space lacks are ignored.
    """
    numbers = np.zeros(len(candidates), dtype=np.int64)
    for name in (name for name in names if name in candidates.space.names):
        numbers = numbers * len(candidates.space[name].values) + candidates.codes[name]
    return np.unique(numbers, return_inverse=True)[1]


def first_free(order: Iterable[int], taken: Set[int]) -> int | None:
    """Return the first entry of an order that is not taken; None if all are."""
    return next((int(index) for index in order if index not in taken), None)


def failing(observations: Sequence[Observation], in_a_row: int) -> bool:
    """Return whether none of the last `in_a_row` trials measured anything.

    If so, the model has failed, and the next choices are random (OPPA App. E.1).
    """
    last = observations[-in_a_row:]
    return len(last) == in_a_row and not any(seen.measured for seen in last)


def at_random(observations: Sequence[Observation], *, first: int, failures: int) -> bool:
    """Return whether the next choice is random: among the first trials, before two were measured, or after too many failures in a row."""
    return len(observations) < first or sum(seen.measured for seen in observations) < 2 or failing(observations, failures)
