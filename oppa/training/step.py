"""One optimizer step of a run, as every rank has it, and what rank 0 orders behind one."""

import dataclasses
import json
from typing import Self

from oppa.pipeline.profile import Profile
from oppa.problem.configuration import Configuration
from oppa.protocol.worker import WorkerState
from oppa.training.noise_scale import NoiseScale, Norms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What rank 0 wants all ranks to do behind a step."""

    configuration: Configuration | None = None
    local_batches: tuple[int, ...] = ()
    """Of each worker, where they are to differ."""
    back_to: str = ""
    """A checkpoint, by its name, whose weights to go back to."""
    save: bool = False
    passes: str = ""
    """An order to go through the pipeline in, as `oppa.pipeline.order_file` writes it."""
    stop: bool = False

    def to_json(self) -> str:
        """As it travels."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        values = json.loads(text)
        configuration = Configuration.from_dict(values["configuration"]) if values["configuration"] else None
        return cls(**{**values, "configuration": configuration, "local_batches": tuple(values["local_batches"])})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step; the same on every rank but for its clock."""

    number: int
    samples: range
    """Their numbers from the start of the run on."""
    shares: tuple[tuple[int, int, int], ...]
    """Of each replica: its first sample, the one behind its last, and the CRC-32 of what it was shown."""
    configuration: Configuration
    local_batches: tuple[int, ...]
    """Of each worker, where they differ."""
    loss: float
    learning_rate: float
    step_time_s: float
    noise_scale: NoiseScale
    norms: tuple[Norms, ...]
    """Of its gradients, by group of parameters; none where it was not measured."""
    workers: tuple[WorkerState, ...]
    """What workers say of the window that ended with the step before; none where none did."""
    updated: bool
    """Gradients were finite: else nothing has learned from these samples."""
    profile: Profile | None
    """Of the run's first steps, behind the last of them."""
    order: Order | None
