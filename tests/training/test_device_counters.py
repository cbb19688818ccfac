"""The counters of links and GPUs come from the kernel's files and from a module that answers as NVML does."""

# ruff: noqa: N802 (the names are NVML's)

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from oppa.training.statistics.device_counters import GpuCounters, GpuReading, network_counters

SNMP = "Tcp: RtoMin RetransSegs\nTcp: 200 7\n"


def tree(root: Path, ports: dict[str, dict[str, str]]) -> Path:
    """Write the files that the kernel would have; return their root."""
    files = {f"sys/class/infiniband/{port}/{name}": text for port, counters in ports.items() for name, text in counters.items()}
    for name, text in {"proc/self/net/snmp": SNMP, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_infiniband_ports_count_words_of_four_bytes(tmp_path) -> None:
    port = {"counters/port_rcv_data": "1000\n", "counters/port_xmit_data": "500\n", "hw_counters/packet_seq_err": "2\n"}
    found = network_counters(tree(tmp_path, {"mlx5_0/ports/1": port, "mlx5_1/ports/1": port}))
    assert found.rdma_bytes == 2 * 4 * 1500 and found.retransmissions == 7 + 2 * 2


def test_a_port_without_counters_carries_nothing(tmp_path) -> None:
    found = network_counters(tree(tmp_path, {"hfi1_0/ports/1": {"counters/port_rcv_data": "N/A (no PMA)\n"}}))
    assert (found.rdma_bytes, found.retransmissions) == (0, 7)


def test_the_busier_network_counts_and_a_reset_counter_stands_still(tmp_path) -> None:
    before = network_counters(tree(tmp_path / "before", {"mlx5_0/ports/1": {"counters/port_rcv_data": "1000"}}))
    after = network_counters(tree(tmp_path / "after", {"mlx5_0/ports/1": {"counters/port_rcv_data": str(10**15)}}))
    assert after.since(before).carried_bytes == 4 * (10**15 - 1000)
    assert before.since(after).rdma_bytes == 0


def test_this_host_counts_its_own_traffic() -> None:
    now = network_counters()
    assert now.carried_bytes >= now.tcp_bytes >= 0 and now.since(now).carried_bytes == 0


class NvmlError(Exception):
    """The error of the module below."""


class Nvml:
    """Answers as `pynvml` does; a GPU without NVLink returns a code per field, and other gaps raise."""

    NVMLError = NvmlError
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def __init__(self, *, uuid: str = "GPU-1", nvlink: bool = True, utilisation: bool = True, driver: bool = True) -> None:
        self._uuid, self._nvlink, self._utilisation, self._driver = uuid, nvlink, utilisation, driver

    def nvmlInit(self) -> None:
        if not self._driver:
            raise NvmlError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self._uuid:
            raise NvmlError("Not Found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if not self._utilisation:
            raise NvmlError("Not Supported")
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(used=20, total=80)

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        code = 0 if self._nvlink and all(scope == 2**32 - 1 for _, scope in fields) else 3
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=100 * field)) for field, _ in fields]


@pytest.mark.parametrize(
    ("nvml", "reading"),
    [
        (Nvml(), GpuReading(busy=0.75, memory_share=0.25, nvlink_bytes=100 * (138 + 139) * 1024)),
        (Nvml(nvlink=False), GpuReading(busy=0.75, memory_share=0.25)),
        (Nvml(utilisation=False, nvlink=False), GpuReading(memory_share=0.25)),
    ],
)
def test_a_gpu_reports_what_it_counts(nvml, reading, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    counters = GpuCounters.of_uuid("GPU-1")
    assert counters and counters.read() == reading


@pytest.mark.parametrize("nvml", [None, Nvml(driver=False), Nvml(uuid="GPU-2")])
def test_a_gpu_is_not_counted_without_module_driver_or_id(nvml, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: the import fails
    assert GpuCounters.of_uuid("GPU-1") is None


def test_a_cpu_has_no_gpu_counters() -> None:
    assert GpuCounters.of(torch.device("cpu")) is None
