"""The devices that a job may use, the memory of each, and the links between them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


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
    """An id such as `CPU`, `A100-80GB` or `H100`."""
    memory_limit_bytes: int
    """Per device."""
    cpus_per_device: float | tuple[float, ...] | None = None
    """A CPU quota for each rank, in cores, where cgroups are writable, or one for each device of a host, in order; None: no quota."""
    intra_host: Link | None = None
    inter_host: Link | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From what `dataclasses.asdict` and JSON make of a cluster."""
        links = {name: values[name] and Link(**values[name]) for name in ("intra_host", "inter_host")}
        cpus = values["cpus_per_device"]
        return cls(**{**values, **links, "cpus_per_device": tuple(cpus) if isinstance(cpus, (list, tuple)) else cpus})

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
