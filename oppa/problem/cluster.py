"""Describe the devices that a job may use, the memory of each, and the links between them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

USABLE_SHARE = 0.9
"""Share of a GPU's memory that tensors can use. CUDA contexts, communication buffers and fragmentation use the rest."""


def usable_of(memory_bytes: int) -> int:
    """Return how many bytes of a GPU's whole memory a process may allocate."""
    return int(memory_bytes * USABLE_SHARE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Describes a connection between two devices."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFile:
    """Holds a file with a device's figures that a job names; predictions use it in place of the catalogue's file."""

    name: str
    text: str
    """Content in TOML. A study stores it, so that it needs no other file."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Describes `hosts` x `devices_per_host` devices of one kind."""

    hosts: int = 1
    devices_per_host: int
    device: str = "CPU"
    """`CPU`, an id of priors/hardware such as `H100`, or one of its aliases."""
    memory_limit_bytes: int
    """Limit per device, as the job states it; the device's whole memory if it states none."""
    memory_limit_stated: bool = True
    cpus_per_device: float | tuple[float, ...] | None = None
    """CPU quota of each rank, in cores, where cgroups are writable; None: no quota.

    A tuple has one quota for each device of a host, in order.
    """
    intra_host: Link | None = None
    """Link between two devices of a host; None: that of the device."""
    inter_host: Link | None = None
    """Network of a whole host, of which each device has its share; None: that of the device."""
    hardware: HardwareFile | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the cluster that `to_dict` wrote, also after a round trip through JSON."""
        links = {name: values[name] and Link(**values[name]) for name in ("intra_host", "inter_host")}
        cpus = values["cpus_per_device"]
        file = {"hardware": HardwareFile(**values["hardware"])} if values.get("hardware") else {}
        return cls(**{**values, **links, **file, "cpus_per_device": tuple(cpus) if isinstance(cpus, (list, tuple)) else cpus})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        values = dataclasses.asdict(self)
        if self.memory_limit_stated:  # omitted, as before this field existed, so that fingerprints of studies stay valid
            del values["memory_limit_stated"]
        if self.hardware is None:  # omitted for the same reason
            del values["hardware"]
        return values

    @property
    def usable_bytes(self) -> int:
        """Return the memory limit that predictions, searches and trials obey: a stated limit, else `usable_of` the device."""
        return self.memory_limit_bytes if self.memory_limit_stated else usable_of(self.memory_limit_bytes)

    @property
    def cpus(self) -> tuple[float, ...]:
        """Return the CPU quotas of a host's devices, in order; empty without a quota."""
        given = self.cpus_per_device
        return given if isinstance(given, tuple) else (given,) * self.devices_per_host if given else ()

    @property
    def devices(self) -> int:
        """Return the number of all devices."""
        return self.hosts * self.devices_per_host

    @property
    def on_cuda(self) -> bool:
        """Return whether ranks compute on CUDA devices (and communicate over NCCL) rather than on the CPU (over gloo)."""
        return self.device != "CPU"
