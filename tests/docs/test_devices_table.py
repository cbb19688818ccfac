"""The table of `docs/reference/devices.md` is equal to the catalogue's files."""

from oppa import catalog
from oppa.cost.hardware import CATALOG, Hardware, load_hardware
from oppa.problem.devices import CPU, GENERIC, devices

PAGE = catalog.root() / "docs" / "reference" / "devices.md"
HEAD = (
    "| device | memory | GB/s | fp32 | bf16 | fp8 | per host | link | pair | network | host memory |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def table() -> str:
    """The table that the page should have."""
    rows = [row(load_hardware(id_)) for id_ in catalog.names(CATALOG) if id_ not in (CPU, GENERIC)]
    return "\n".join([*HEAD, *(f"| {' | '.join(cells)} |" for cells in rows)])


def row(device: Hardware) -> list[str]:
    """The cells of one device: GiB, GB/s and Tflop/s, rounded to three digits."""
    peaks = device.matmul_flops_per_s
    half = peaks.get("bf16") or peaks.get("fp16")
    wide = f" ({device.link_devices})" if device.link_devices > device.devices_per_host else ""
    return [
        f"`{device.name}`",
        f"{devices()[device.name].memory_bytes / 2**30:.4g}",
        short(device.memory_bandwidth_bytes_per_s / 1e9),
        short(peaks["fp32"] / 1e12),
        short(half / 1e12) + ("" if "bf16" in peaks else " (fp16)"),
        short(peaks["fp8"] / 1e12) if "fp8" in peaks else "",
        str(device.devices_per_host),
        short(device.intra_host.bandwidth_bytes_per_s / 1e9) + wide,
        short(device.pair.bandwidth_bytes_per_s / 1e9) if device.pair else "",
        short(device.inter_host.bandwidth_bytes_per_s / 1e9),
        short(device.host_link.bandwidth_bytes_per_s / 1e9) if device.host_link else "",
    ]


def short(number: float) -> str:
    return f"{float(f'{number:.3g}'):,g}".replace(",", "")


def test_the_page_has_every_device_with_the_figures_of_its_file() -> None:
    wanted = table()
    assert wanted in PAGE.read_text(), f"docs/reference/devices.md should have this table:\n{wanted}"
