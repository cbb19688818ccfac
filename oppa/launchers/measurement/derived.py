"""Derive a device's figures from a measurement, as the cost model uses them; the catalogue has what was not measured.

The smallest all-reduce of n ranks takes `operation_s` and one latency for each of its hops. There are 2 (n - 1) around a ring, or 2 log2(n)
in two trees, whichever is less.
"""

import dataclasses
import math
import statistics

from oppa.cost.coefficients import Belief, load_beliefs
from oppa.cost.hardware import Hardware, LinkDomain, load_hardware
from oppa.launchers.measurement.figures import (
    ALL_REDUCE,
    HOST,
    MATMUL,
    MEMORY,
    NETWORK,
    SEND,
    TO_DEVICE,
    TO_HOST,
    Figure,
    HardwareMeasurement,
)
from oppa.problem.cluster import Link
from oppa.problem.devices import CPU, GENERIC, identify

_CLOSER, _ALIKE = 1.5, 0.7
"""A link is closer if it is this much faster than the slowest of a host; those within this share of the fastest are alike."""
_SOURCE = "assumed: the figure above is measured by itself; a training step reaches less of it"
_EFFICIENCIES = {"matmul": ("matmul_efficiency", 0.8, 0.2), HOST: ("intra_efficiency", 0.95, 0.15), NETWORK: ("inter_efficiency", 0.9, 0.3)}
_REPLACED = {MEMORY: ("memory_efficiency",), HOST: ("intra_efficiency", "latency", "operation_s"), NETWORK: ("inter_efficiency",)}
"""Coefficients of the catalogue's device that do not apply to measured figures."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DerivedHardware:
    """Holds a device's figures, and which of them were measured."""

    hardware: Hardware
    memory_bytes: int
    known: Hardware
    """Device of the catalogue that has the other figures."""
    measured: frozenset[str]
    """Names of the measured tables: `host` and `network` are links."""


def derive(found: HardwareMeasurement) -> DerivedHardware:
    """Return the device's figures."""
    known = load_hardware(CPU if found.device == CPU else identify(found.device, found.memory_bytes) or GENERIC)
    within, operation_s = _within(found)
    across, ports = _across(found, operation_s)
    copies = _host_link(found)
    rates = {figure.detail: figure.median for figure in found.figures if figure.what == MATMUL}
    memory = found.find(MEMORY)
    tables = {MATMUL: bool(rates), MEMORY: memory is not None, HOST: within is not None, NETWORK: across is not None}
    measured = frozenset(name for name, is_there in {**tables, "copies": copies is not None}.items() if is_there)
    hardware = dataclasses.replace(
        known,
        devices_per_host=found.devices_per_host,
        memory_bandwidth_bytes_per_s=memory.median if memory else known.memory_bandwidth_bytes_per_s,
        matmul_flops_per_s={**({} if "fp32" in rates else {"fp32": known.matmul_peak("fp32")}), **rates},
        intra_host=within or known.intra_host,
        inter_host=across or known.inter_host,
        ports=ports if across else known.ports,
        link_devices=known.link_devices if known.link_devices > known.devices_per_host else found.devices_per_host,
        pair=_pair(found, within) if within else None,
        host_link=copies or known.host_link,
        stalls=known.stalls and not across,
        coefficients=_coefficients(known, measured, operation_s),
    )
    return DerivedHardware(hardware=hardware, memory_bytes=found.memory_bytes, known=known, measured=measured)


def _within(found: HardwareMeasurement) -> tuple[Link | None, float | None]:
    """Return the link within a host, and the seconds of a collective without its hops; None if a host has one device."""
    large = _all_reduce(found, HOST, found.devices_per_host)
    small, pair = _all_reduce(found, HOST, found.devices_per_host, small=True), _all_reduce(found, HOST, 2, small=True)
    if large is None or small is None or pair is None:
        return None, None
    hops = _hops(found.devices_per_host)
    if hops > _hops(2):
        latency_s = max(small.median - pair.median, pair.median / 100) / (hops - _hops(2))
        operation_s = max(pair.median - _hops(2) * latency_s, pair.median / 10)
    else:  # nothing tells the two apart, and their sum matters
        latency_s, operation_s = pair.median / 4, pair.median / 2
    return Link(bandwidth_bytes_per_s=_bandwidth(large, small), latency_s=latency_s), operation_s


def _across(found: HardwareMeasurement, operation_s: float | None) -> tuple[Link | None, float]:
    """Return one device's share of the link between hosts, and the number of ports that the devices of a host share."""
    large, small = _all_reduce(found, NETWORK, found.hosts), _all_reduce(found, NETWORK, found.hosts, small=True)
    if large is None or small is None:
        return None, 0.0
    start_s = min(operation_s or math.inf, small.median / 2)
    share = _bandwidth(large, small)
    alone = found.find(SEND, NETWORK)
    ports = found.devices_per_host * share / alone.median if alone else found.devices_per_host
    link = Link(bandwidth_bytes_per_s=share, latency_s=(small.median - start_s) / _hops(found.hosts))
    return link, float(min(max(1, round(ports)), found.devices_per_host))


def _all_reduce(found: HardwareMeasurement, scope: str, ranks: int, *, small: bool = False) -> Figure | None:
    kept = (each for each in found.figures if (each.what, each.detail, each.ranks) == (ALL_REDUCE, scope, ranks))
    return next((each for each in kept if small == (not each.work)), None)


def _bandwidth(large: Figure, small: Figure) -> float:
    """Return the bandwidth of a large all-reduce without its latency, in bytes per second."""
    seconds = statistics.median(large.seconds)
    return large.work / max(seconds - small.median, seconds / 2)


def _hops(ranks: int) -> int:
    return min(2 * (ranks - 1), 2 * math.ceil(math.log2(ranks)))


def _pair(found: HardwareMeasurement, within: Link) -> LinkDomain | None:
    """Return the closer link of rank 0, if transfers to some devices of its host are faster than to others."""
    if found.device == CPU:  # loopback is the same for all
        return None
    rates = [each.median for each in found.figures if each.what == SEND and each.work and each.detail != NETWORK]
    if len(rates) < 2 or max(rates) < _CLOSER * min(rates):
        return None
    close = [rate for rate in rates if rate > _ALIKE * max(rates)]
    devices = len(close) + 1
    if found.devices_per_host % devices:
        return None
    return LinkDomain(devices=devices, bandwidth_bytes_per_s=statistics.median(close), latency_s=within.latency_s)


def _host_link(found: HardwareMeasurement) -> Link | None:
    rates, waits = [found.find(what) for what in (TO_DEVICE, TO_HOST)], [found.find(what, small=True) for what in (TO_DEVICE, TO_HOST)]
    medians, seconds = [each.median for each in rates if each], [each.median for each in waits if each]
    return Link(bandwidth_bytes_per_s=min(medians), latency_s=max(seconds)) if medians and seconds else None


def _coefficients(known: Hardware, measured: frozenset[str], operation_s: float | None) -> dict[str, Belief]:
    """Return the catalogue's coefficients of the device, and those that measured figures need in place of some of them."""
    replaced = {name for table in measured for name in _REPLACED.get(table, ())}
    kept = {name: belief for name, belief in known.coefficients.items() if name not in replaced}
    for table in measured & _EFFICIENCIES.keys():
        name, median, spread = _EFFICIENCIES[table]
        if table != MATMUL or known.asynchronous:  # the catalogue's figures of a core are measured too
            kept[name] = Belief(median=median, spread=spread, source=_SOURCE)
    if operation_s:
        kept["operation_s"] = Belief(
            median=operation_s, spread=0.5, source="measured: small all-reduces, without the latency of their hops"
        )
    usable = {*load_beliefs("step_time"), *load_beliefs("memory")}
    return {name: belief for name, belief in sorted(kept.items()) if name in usable}
