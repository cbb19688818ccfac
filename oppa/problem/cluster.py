"""The devices that a job may use, the memory of each, and the links between them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

USABLE_SHARE = 0.9
"""The part of a GPU's memory that tensors can take. CUDA contexts, communication buffers and fragmentation take the rest."""


def usable_of(memory_bytes: int) -> int:
    """Return how much of a GPU's whole memory a process may allocate."""
    return int(memory_bytes * USABLE_SHARE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection between two devices."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`hosts` x `devices_per_host` devices of one kind."""

    hosts: int = 1
    devices_per_host: int
    device: str = "CPU"
    """`CPU`, an id of priors/hardware such as `H100`, or one of its aliases."""
    memory_limit_bytes: int
    """Per device: the limit that the job states; the device's whole memory where it states none."""
    memory_limit_stated: bool = True
    cpus_per_device: float | tuple[float, ...] | None = None
    """A CPU quota for each rank, in cores, where cgroups are writable, or one for each device of a host, in order; None: no quota."""
    intra_host: Link | None = None
    inter_host: Link | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, after JSON, too."""
        links = {name: values[name] and Link(**values[name]) for name in ("intra_host", "inter_host")}
        cpus = values["cpus_per_device"]
        return cls(**{**values, **links, "cpus_per_device": tuple(cpus) if isinstance(cpus, (list, tuple)) else cpus})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to JSON."""
        values = dataclasses.asdict(self)
        if self.memory_limit_stated:  # left out as before there was a choice, so that fingerprints of studies hold
            del values["memory_limit_stated"]
        return values

    @property
    def usable_bytes(self) -> int:
        """The memory limit that predictions, searches and trials all obey: a stated limit whole, else `usable_of` the device."""
        return self.memory_limit_bytes if self.memory_limit_stated else usable_of(self.memory_limit_bytes)

    @property
    def cpus(self) -> tuple[float, ...]:
        """The quotas of a host's devices, in order; none where there is no quota."""
        given = self.cpus_per_device
        return given if isinstance(given, tuple) else (given,) * self.devices_per_host if given else ()

    @property
    def devices(self) -> int:
        """All devices."""
        return self.hosts * self.devices_per_host

    @property
    def on_cuda(self) -> bool:
        """Ranks compute on CUDA devices (and talk over NCCL) rather than on the CPU (over gloo)."""
        return self.device != "CPU"
