"""What a designer is: it suggests the next configuration, and learns how the last ones ended."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence, Set
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.study import Prediction, Trial
from oppa.trials.trial import TrialResult
from oppa.trials.wire import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """How a candidate's trial ended, as a model can use it."""

    candidate: int
    outcome: Outcome
    log_steps_per_s: float | None
    log_variance: float | None
    """Variance of `log_steps_per_s` (delta method: relative variance of the throughput)."""
    memory_bytes: int | None
    prediction: Prediction | None = None
    """What was expected of it."""
    step_times_s: tuple[float, ...] = ()
    """The first (warm-up) included."""
    seconds: float = 0.0
    """That the trial took, from its start until nothing of it was left."""

    @property
    def measured(self) -> bool:
        """It has a throughput."""
        return self.log_steps_per_s is not None

    @classmethod
    def of(cls, trial: Trial, candidates: Candidates) -> Self:
        """The observation that a trial of one of the candidates is."""
        return cls.of_result(
            candidates.index_of(trial.configuration), trial, rate=trial.steps_per_s, variance=trial.variance, prediction=trial.prediction
        )

    @classmethod
    def of_result(
        cls, candidate: int, result: Trial | TrialResult, *, rate: float | None, variance: float | None, prediction: Prediction | None
    ) -> Self:
        """The observation of a trial that measured `rate` with a `variance`, in steps per second, or nothing."""
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
    """What a profile tells of a candidate: a log-normal belief in its throughput, and its memory."""

    candidate: int
    log_rate: float
    """Mean of the logarithm of steps per second."""
    log_stddev: float
    memory_bytes: int | None
    measured: bool


def by_candidate(observations: Iterable[Observation]) -> dict[int, list[Observation]]:
    """The trials of each candidate, in the order in which it was first tried."""
    trials: dict[int, list[Observation]] = {}
    for seen in observations:
        trials.setdefault(seen.candidate, []).append(seen)
    return trials


def standing(trials: Sequence[Observation]) -> float | None:
    """The logarithm of a candidate's throughput as far as its trials tell: the mean of all, once one ran to its end.

    None for what may not be returned: it never did, or ran out of memory in one of them.
    """
    outcomes = {seen.outcome for seen in trials}
    if "completed" not in outcomes or "out_of_memory" in outcomes:
        return None
    return statistics.fmean(seen.log_steps_per_s for seen in trials if seen.log_steps_per_s is not None)


def standings(observations: Iterable[Observation]) -> dict[int, float]:
    """The candidates that may be returned, fastest first, with the logarithm of their throughput."""
    known = {candidate: value for candidate, trials in by_candidate(observations).items() if (value := standing(trials)) is not None}
    return dict(sorted(known.items(), key=lambda each: -each[1]))


def incumbent(observations: Iterable[Observation]) -> tuple[int, float] | None:
    """The candidate that would be returned, and the logarithm of its throughput; None before one ran to its end."""
    return next(iter(standings(observations).items()), None)


class Designer(Protocol):
    """Chooses what to try; every designer sees the same candidates and the same observations."""

    def suggest(self, taken: Set[int]) -> int | None:
        """The next candidate, by its number; None when none is left.

        One outside `taken` (tried before, or being tried by someone), or one that ran to its end before, to measure it again.
        """
        ...

    def predict(self, candidate: int) -> Prediction | None:
        """What a trial of the candidate is expected to measure; None without a model."""
        ...

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn how trials ended: each of them once, interrupted ones never."""
        ...


def free(size: int, taken: Set[int]) -> NDArray[np.int64]:
    """Those of `size` candidates that are not taken, by number, in order."""
    untaken = np.ones(size, dtype=bool)
    untaken[list(taken)] = False
    return np.flatnonzero(untaken)


def groups(candidates: Candidates, names: Sequence[str]) -> NDArray[np.intp]:
    """For each candidate the number of its combination of values, counted from 0; parameters that the space lacks tell nothing apart."""
    numbers = np.zeros(len(candidates), dtype=np.int64)
    for name in (name for name in names if name in candidates.space.names):
        numbers = numbers * len(candidates.space[name].values) + candidates.codes[name]
    return np.unique(numbers, return_inverse=True)[1]


def first_free(order: Iterable[int], taken: Set[int]) -> int | None:
    """The first of an order that is not taken; None when all are."""
    return next((int(index) for index in order if index not in taken), None)


def failing(observations: Sequence[Observation], in_a_row: int) -> bool:
    """None of the last so many trials measured anything: what a model believes has failed, and chance takes over (OPPA App. E.1)."""
    last = observations[-in_a_row:]
    return len(last) == in_a_row and not any(seen.measured for seen in last)


def at_random(observations: Sequence[Observation], *, first: int, failures: int) -> bool:
    """Chance chooses: the first trials, until two have measured something, and after too many failures in a row."""
    return len(observations) < first or sum(seen.measured for seen in observations) < 2 or failing(observations, failures)
