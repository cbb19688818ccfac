"""What a trial would measure, known beforehand: the seam between what answers trials in process and what asks."""

import dataclasses
from typing import Protocol

from oppa.problem.configuration import Configuration
from oppa.trials.wire import Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """How a trial would go if nobody stopped it."""

    outcome: Outcome
    """`completed`, `out_of_memory` or `failed`."""
    cause: str = ""
    setup_s: float
    """From the start to the beginning of the first step, or to the failure."""
    step_times_s: tuple[float, ...] = ()
    """Of every step, the first (warm-up) included; empty where it fails before."""
    memory_bytes: int | None = None
    """Peak, maximum over ranks."""


class Imitator(Protocol):
    """Answers trials in process."""

    def imitate(self, configuration: Configuration, *, steps: int, seed: int) -> Imitation:
        """The trial of a configuration; its noise depends on the configuration and the seed alone."""
        ...

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """The true throughput, free of noise; None where it cannot run."""
        ...
