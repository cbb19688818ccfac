"""Write a derived device as a hardware file: the form of `priors/hardware`, with `measured: ...` as its source."""

import datetime
import json
from collections.abc import Iterator, Mapping

from oppa.launchers.measurement.derived import DerivedHardware
from oppa.launchers.measurement.figures import HOST, MATMUL, MEMORY, NETWORK, HardwareMeasurement
from oppa.launchers.measurement.nodes import names, slow_nodes
from oppa.problem.cluster import Link
from oppa.problem.declaration import spell


def hardware_text(found: HardwareMeasurement, derived: DerivedHardware, date: datetime.date) -> str:
    """Return the text of the hardware file."""
    return "\n".join(_lines(found, derived, date)) + "\n"


def _lines(found: HardwareMeasurement, derived: DerivedHardware, date: datetime.date) -> Iterator[str]:
    hardware, place = derived.hardware, f"{found.hosts} x {found.devices_per_host} {found.device}"
    by = f"measured: oppa doctor --measure, {date.isoformat()}, on {place}; {found.software}; medians"
    known = f"not measured: as {derived.known.name} in oppa's device catalogue"
    sources = {name: by if name in derived.measured else known for name in (MATMUL, MEMORY, HOST, NETWORK, "copies")}
    yield f'# Written by `oppa doctor --measure` on {place}. A job uses it with `hardware = "THIS FILE"` in [cluster].'
    yield f"description = {spell(f'{found.device}, measured')}"
    yield f"devices_per_host = {hardware.devices_per_host}"
    if slow := names(slow_nodes(found.nodes)):
        yield "# slower than the spread of the other nodes explains; trials on them are marked"
        yield f"slow_nodes = {json.dumps(slow)}"
    memory = {"bytes": derived.memory_bytes, "bandwidth_bytes_per_s": hardware.memory_bandwidth_bytes_per_s}
    yield from _table("memory", memory, sources[MEMORY])
    yield from _table("matmul_flops_per_s", hardware.matmul_flops_per_s, sources[MATMUL])
    wide = {"devices": hardware.link_devices} if hardware.link_devices > hardware.devices_per_host else {}
    yield from _table("intra_host", {**_link(hardware.intra_host), **wide}, sources[HOST])
    yield from _table(
        "inter_host", {**_link(hardware.inter_host), "ports": min(hardware.ports, hardware.devices_per_host)}, sources[NETWORK]
    )
    if hardware.pair:
        yield from _table("pair", {"devices": hardware.pair.devices, **_link(hardware.pair)}, sources[HOST])
    if hardware.host_link:
        yield from _table("host_link", _link(hardware.host_link), sources["copies"])
    for name, belief in hardware.coefficients.items():
        yield from _table(f"coefficients.{name}", {"median": belief.median, "spread": belief.spread}, belief.source)


def _link(link: Link) -> dict[str, float]:
    return {"bandwidth_bytes_per_s": link.bandwidth_bytes_per_s, "latency_s": link.latency_s}


def _table(name: str, numbers: Mapping[str, float], source: str) -> Iterator[str]:
    yield from ("", f"[{name}]")
    yield from (f"{key} = {value if isinstance(value, int) else f'{value:.4g}'}" for key, value in numbers.items())
    yield f"source = {spell(source)}"
