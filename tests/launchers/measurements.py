"""Make up measurements of devices."""

from oppa.launchers.measurement.figures import Figure, HardwareMeasurement


def figure(what: str, detail: str = "", *, ranks: int = 1, work: float = 0.0, seconds: float) -> Figure:
    """Return a figure of three repeats, whose median is `seconds`."""
    return Figure(what=what, detail=detail, ranks=ranks, work=work, payload_bytes=4096, seconds=(0.9 * seconds, seconds, 1.2 * seconds))


def measured(*figures: Figure, device: str = "NVIDIA H100 80GB HBM3", hosts: int = 1, devices: int = 8) -> HardwareMeasurement:
    """Return a measurement with these figures besides those of kernels and memory."""
    kernels = [figure("matmul", "bf16", work=7e12, seconds=0.01), figure("matmul", "fp32", work=5e11, seconds=0.01)]
    memory = figure("memory", work=3e10, seconds=0.01)
    return HardwareMeasurement(
        device=device,
        memory_bytes=85 * 10**9,
        hosts=hosts,
        devices_per_host=devices,
        software="torch",
        figures=(*kernels, memory, *figures),
    )
