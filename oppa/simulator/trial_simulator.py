"""Define the interface of trial simulators, which compute the result of a trial in process."""

import dataclasses
from typing import Protocol

from oppa.problem.configuration import Configuration
from oppa.trials.trial_folder import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrial:
    """Describes how a trial goes if nothing ends it early."""

    outcome: Outcome
    """`completed`, `out_of_memory` or `failed`."""
    cause: str = ""
    setup_s: float
    """Seconds from the start to the first step, or to the failure."""
    step_times_s: tuple[float, ...] = ()
    """Seconds of every step, the first (warm-up) included; empty if the trial fails before it."""
    memory_bytes: int | None = None
    """Peak memory, the maximum over ranks."""


class TrialSimulator(Protocol):
    """Simulates trials in process, without starting a program."""

    def simulate_trial(self, configuration: Configuration, *, steps: int, seed: int) -> SimulatedTrial:
        """Return the simulated trial of a configuration; its noise depends on the configuration and the seed alone."""

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """Return the true throughput without noise, in steps per second; None if the configuration cannot run."""
