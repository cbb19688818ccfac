"""The devices that a job may use, the memory of each, and the links between them."""

import dataclasses


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
    cpus_per_device: float | None = None
    """A CPU quota for each rank, in cores, where cgroups are writable; None: no quota."""
    intra_host: Link | None = None
    inter_host: Link | None = None

    @property
    def devices(self) -> int:
        """All devices."""
        return self.hosts * self.devices_per_host

    @property
    def on_cuda(self) -> bool:
        """Ranks compute on CUDA devices (and talk over NCCL) rather than on the CPU (over gloo)."""
        return self.device != "CPU"
