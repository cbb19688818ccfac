"""What a designer is: it suggests the next configuration, and learns how the last ones ended."""

import dataclasses
import math
import zlib
from collections.abc import Sequence, Set
from typing import Protocol

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.study import Prediction, Trial
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

    @classmethod
    def of(cls, trial: Trial, candidates: Candidates) -> "Observation":
        """The observation that a trial of one of the candidates is."""
        rate, variance = trial.steps_per_s, trial.variance
        return cls(
            candidate=candidates.index_of(trial.configuration),
            outcome=trial.outcome,
            log_steps_per_s=math.log(rate) if rate else None,
            log_variance=variance / rate**2 if rate and variance is not None else None,
            memory_bytes=trial.memory_bytes,
            prediction=trial.prediction,
            step_times_s=trial.step_times_s,
        )


class Designer(Protocol):
    """Chooses what to try; every designer sees the same candidates and the same observations."""

    def suggest(self, taken: Set[int]) -> int | None:
        """The next candidate outside `taken` (tried before, or being tried by someone), by its number; None when none is left."""
        ...

    def predict(self, candidate: int) -> Prediction | None:
        """What a trial of the candidate is expected to measure; None without a model."""
        ...

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn how trials ended: each of them once, interrupted ones never."""
        ...


def stream(seed: int, name: str) -> np.random.Generator:
    """An independent random stream per purpose: adding one never shifts another."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))
