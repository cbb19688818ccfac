"""Define the record of one optimizer step, and rank 0's directive for the time after a step."""

import dataclasses
import json
from typing import Self

from oppa.pipeline.profile import PipelineProfile
from oppa.problem.configuration import Configuration
from oppa.protocol.worker import WorkerState
from oppa.training.statistics.noise_scale import NoiseScale, Norms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """Holds rank 0's directive, which all ranks follow after a step."""

    configuration: Configuration | None = None
    """New configuration; None keeps the present one."""
    local_batches: tuple[int, ...] = ()
    """Samples of each worker; empty if all take the same number."""
    back_to: str = ""
    """Name of a checkpoint whose weights to restore; empty for none."""
    save: bool = False
    passes: str = ""
    """Schedule to use, as CSV text of `oppa.pipeline.torch_csv`; empty keeps the present one."""
    stop: bool = False

    def to_json(self) -> str:
        """Return the JSON text that rank 0 broadcasts."""
        return json.dumps({**dataclasses.asdict(self), "configuration": self.configuration and self.configuration.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the result of `to_json`."""
        values = json.loads(text)
        configuration = Configuration.from_dict(values["configuration"]) if values["configuration"] else None
        return cls(**{**values, "configuration": configuration, "local_batches": tuple(values["local_batches"])})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """Describes one optimizer step; it is the same on every rank, except for measured times."""

    number: int
    samples: range
    """Numbers of its samples, counted from the start of the run."""
    shares: tuple[tuple[int, int, int], ...]
    """First sample, the one after the last, and CRC-32 of the inputs, for each replica."""
    configuration: Configuration
    local_batches: tuple[int, ...]
    """Samples of each worker; empty if all take the same number."""
    loss: float
    learning_rate: float
    step_time_s: float
    noise_scale: NoiseScale
    norms: tuple[Norms, ...]
    """Norms of its gradients, by group of parameters; empty if they were not measured."""
    workers: tuple[WorkerState, ...]
    """State of each worker over the window that ended with the step before; empty if none ended."""
    updated: bool
    """The weights were updated: the loss was finite, and so were the gradients if they were measured or clipped."""
    profile: PipelineProfile | None
    """Profile of the run's first steps, set in the last of them."""
    directive: Directive | None
