"""Replays recorded measurements: a trial is answered from what was measured once, with noise around it."""

import dataclasses
import math
import zlib
from collections.abc import Mapping

import numpy as np

from oppa.problem.configuration import Configuration
from oppa.simulator.imitation import Imitation
from oppa.trials.wire import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is on record of a configuration; `steps_per_s` is None where it did not run."""

    outcome: Outcome
    steps_per_s: float | None = None
    memory_bytes: int | None = None
    step_noise: float | None = None
    """Instead of the whole table's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What a table leaves out: standard deviations of the logarithm of step times, and the time that a start takes."""

    trial: float = 0.03
    """Between trials of one configuration; the same for all of a trial's steps."""
    step: float = 0.03
    setup_s: float = 60.0
    """Of every trial, failures included."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Answers trials of the configurations on record (an Imitator)."""

    records: Mapping[Configuration, Record]
    noise: Noise

    def imitate(self, configuration: Configuration, *, steps: int, seed: int) -> Imitation:
        """Step times lognormal around the record; raises KeyError for a configuration that is not on it."""
        record = self.records[configuration]
        if record.steps_per_s is None:
            return Imitation(outcome=record.outcome, cause="recorded so", setup_s=self.noise.setup_s)
        rng = np.random.default_rng((seed, zlib.crc32(configuration.id.encode())))
        step_noise = self.noise.step if record.step_noise is None else record.step_noise
        usual = -math.log(record.steps_per_s) + self.noise.trial * rng.standard_normal()
        times = np.exp(usual + step_noise * rng.standard_normal(steps))
        return Imitation(
            outcome="completed", setup_s=self.noise.setup_s, step_times_s=tuple(times.tolist()), memory_bytes=record.memory_bytes
        )

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """What is on record."""
        return self.records[configuration].steps_per_s
