"""Replay recorded measurements: each trial returns what was once measured, with noise added."""

import dataclasses
import math
import zlib
from collections.abc import Mapping

import numpy as np

from oppa.problem.configuration import Configuration
from oppa.simulator.trial_simulator import SimulatedTrial
from oppa.trials.trial_folder import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Describes the recorded result of a configuration; `steps_per_s` is None if it did not run."""

    outcome: Outcome
    steps_per_s: float | None = None
    memory_bytes: int | None = None
    step_noise: float | None = None
    """Standard deviation of the logarithm of step times; None: the whole table's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayNoise:
    """Holds what a table omits: standard deviations of the logarithm of step times, and the start-up time."""

    trial: float = 0.03
    """Standard deviation between trials of one configuration; all steps of a trial share the deviation."""
    step: float = 0.03
    setup_s: float = 60.0
    """Start-up time of every trial, failures included."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Replays trials of the recorded configurations."""

    records: Mapping[Configuration, Record]
    noise: ReplayNoise

    def simulate_trial(self, configuration: Configuration, *, steps: int, seed: int) -> SimulatedTrial:
        """Return a trial with log-normal step times around the record; raises KeyError for a configuration without one."""
        record = self.records[configuration]
        if record.steps_per_s is None:
            return SimulatedTrial(outcome=record.outcome, cause="recorded in the table", setup_s=self.noise.setup_s)
        rng = np.random.default_rng((seed, zlib.crc32(configuration.id.encode())))
        step_noise = self.noise.step if record.step_noise is None else record.step_noise
        usual = -math.log(record.steps_per_s) + self.noise.trial * rng.standard_normal()
        times = np.exp(usual + step_noise * rng.standard_normal(steps))
        return SimulatedTrial(
            outcome="completed", setup_s=self.noise.setup_s, step_times_s=tuple(times.tolist()), memory_bytes=record.memory_bytes
        )

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """Return the recorded steps per second, None if it did not run; raises KeyError for a configuration without a record."""
        return self.records[configuration].steps_per_s
