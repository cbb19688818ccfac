"""Read the counters of a worker's links and GPU: TCP, InfiniBand or RoCE ports, and NVML where `nvidia-ml-py` is installed.

The driver counts the data of an InfiniBand port in words of four bytes (Linux, Documentation/ABI/stable/sysfs-class-infiniband). NVML
counts the data of NVLink in KiB (nvml.h). Remote direct memory access passes the kernel by, so no TCP counter has its bytes.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import torch

PORTS = "sys/class/infiniband/*/ports/*"
WORD_BYTES, NVLINK_UNIT_BYTES = 4, 1024
DATA = ("counters/port_rcv_data", "counters/port_xmit_data")
RETRIES = ("hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err", "hw_counters/rnr_nak_retry_err")
"""Counters of a port, each of which has a packet sent again (Linux, drivers/infiniband/hw/mlx5/counters.c)."""
ALL_LINKS = 2**32 - 1
"""Scope of a field of NVML that stands for all NVLinks of a GPU."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCounters:
    """Holds the totals of this host's network, or their change over a window."""

    tcp_bytes: int
    rdma_bytes: int
    retransmissions: int
    """TCP segments and packets of InfiniBand that were sent again."""

    @property
    def carried_bytes(self) -> int:
        """Return the bytes of the busier of the two: IP over InfiniBand counts in both, and RoCE ports do not count TCP."""
        return max(self.tcp_bytes, self.rdma_bytes)

    def since(self, before: "NetworkCounters") -> "NetworkCounters":
        """Return the change since an earlier reading; a counter that was reset counts as still."""
        names = (field.name for field in dataclasses.fields(self))
        return NetworkCounters(**{name: max(0, getattr(self, name) - getattr(before, name)) for name in names})


def network_counters(root: Path = Path("/")) -> NetworkCounters:
    """Return the totals of all network interfaces and InfiniBand ports; 0 for what the system does not count."""
    carried, ports = psutil.net_io_counters(nowrap=False), list(root.glob(PORTS))
    return NetworkCounters(
        tcp_bytes=carried.bytes_sent + carried.bytes_recv if carried else 0,
        rdma_bytes=WORD_BYTES * sum(_number(port / name) for port in ports for name in DATA),
        retransmissions=_retransmitted(root) + sum(_number(port / name) for port in ports for name in RETRIES),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Holds what NVML reports of one GPU."""

    busy: float = 0.0
    """Share of the driver's last sampling period, at most one second, in which a kernel ran."""
    memory_share: float = 0.0
    """Share of the GPU's memory in use."""
    nvlink_bytes: int = 0
    """Total bytes sent and received over all NVLinks; 0 without NVLink."""


class GpuCounters:
    """Reads the counters of one GPU from NVML.

    Args:
        nvml: The module `pynvml`, initialised.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def of(cls, device: torch.device) -> Self | None:
        """Return the counters of a device; None for a CPU, without `nvidia-ml-py`, and for a GPU that NVML does not find."""
        if device.type != "cuda":
            return None
        return cls.of_uuid(f"GPU-{torch.cuda.get_device_properties(device).uuid}")  # CUDA_VISIBLE_DEVICES renumbers GPUs

    @classmethod
    def of_uuid(cls, uuid: str) -> Self | None:
        """Return the counters of a GPU by its id, under the same conditions."""
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError:
            return None

    def read(self) -> GpuReading:
        """Return the present reading; 0 for what the GPU does not report."""
        nvml, found = self._nvml, dict[str, float]()
        with contextlib.suppress(nvml.NVMLError):
            found["busy"] = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
            found["memory_share"] = memory.used / memory.total
        return GpuReading(**found, nvlink_bytes=sum(self._nvlink()) * NVLINK_UNIT_BYTES)

    def _nvlink(self) -> Iterator[int]:
        """Yield the KiB received and sent."""
        nvml = self._nvml
        fields = [(field, ALL_LINKS) for field in (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)]
        with contextlib.suppress(nvml.NVMLError):
            for value in nvml.nvmlDeviceGetFieldValues(self._handle, fields):
                if value.nvmlReturn == 0:
                    yield int(value.value.ullVal)


def _number(file: Path) -> int:
    """Return the number in a file of the kernel; 0 if there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def _retransmitted(root: Path) -> int:
    """Return the number of TCP segments that this host has retransmitted; 0 if the system does not count them."""
    try:
        names, values = (line.split() for line in (root / "proc/self/net/snmp").read_text().splitlines() if line.startswith("Tcp:"))
    except (OSError, ValueError):
        return 0
    return int(dict(zip(names, values, strict=True)).get("RetransSegs", 0))
