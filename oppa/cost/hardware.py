"""Load the devices and the links between them from `priors/hardware/*.toml`."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from oppa import catalog
from oppa.cost.coefficients import Belief, CoefficientTable, load_beliefs
from oppa.errors import InputError, require_known
from oppa.problem.cluster import Cluster, HardwareFile, Link, usable_of
from oppa.problem.declaration import Count, DeclaredTable, Positive, Source, parse, read, validate
from oppa.problem.devices import CATALOG, CPU, GENERIC, identify

_MODELS = ("step_time", "memory")
"""Names of the files under `priors/` whose coefficients a device may override."""
_SIXTEEN_BIT = ("bf16", "fp16", "fp32")
_FALLBACKS = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "bf16": _SIXTEEN_BIT,
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", *_SIXTEEN_BIT),
    "mxfp8": ("fp8", *_SIXTEEN_BIT),
    "fp4": ("fp4", "fp8", *_SIXTEEN_BIT),
}
"""Peaks that apply to each precision, the first that the device states."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkDomain(Link):
    """Describes the faster link among a few devices of one host, such as two cards with an NVLink bridge."""

    devices: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Describes one kind of device: its peaks from data sheets, its links as usually deployed."""

    name: str
    devices_per_host: int
    memory_bytes: int
    """Whole memory of a device, as its driver reports it."""
    usable_bytes: int
    """Memory limit of a device: the cluster's; for a device of the catalogue, `usable_of` its memory, on CPUs all of it."""
    memory_bandwidth_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, float]
    """Peak of dense matrix products, by precision."""
    intra_host: Link
    inter_host: Link
    ports: float
    """Network ports of a host.

    With one port, the devices that communicate share the whole network bandwidth of their host. With one port per device, each of them
    uses no more than its own share.
    """
    stalls: bool = True
    """Pipelines over its hosts may stall as the framework's runs elsewhere did; False if the network is that of the job's own cluster."""
    link_devices: int
    """Number of devices that `intra_host` connects: a host's, or more if the link spans hosts, such as 72 in an NVL72 rack."""
    pair: LinkDomain | None = None
    """Faster link inside a host: an NVLink bridge, the chips of one module, or the devices of a NUMA node."""
    host_link: Link | None = None
    """Link from one device to its host's memory, in one direction."""
    asynchronous: bool = True
    """The device computes while its host prepares the next operations; on a CPU, one follows the other."""
    coefficients: Mapping[str, Belief] = dataclasses.field(default_factory=dict)
    """Coefficients that override the general ones on this device."""
    slow_nodes: tuple[str, ...] = ()
    """Names of nodes that were measured to be slow."""

    def matmul_peak(self, precision: str) -> float:
        """Return operations per second at a precision; raises InputError if the precision is unknown.

        If the device states no peak for fp8, that of bf16 applies; for a 16-bit format, that of the other one, then that of fp32.
        """
        if precision not in _FALLBACKS:
            raise InputError(f"`precision = {precision}` is unknown", hint=f"use one of {', '.join(_FALLBACKS)}")
        return next(self.matmul_flops_per_s[name] for name in _FALLBACKS[precision] if name in self.matmul_flops_per_s)

    @property
    def default_precision(self) -> str:
        """Return the precision that large models train in on this device: bf16 if it has it, else fp16, else fp32."""
        return next(name for name in _SIXTEEN_BIT if name in self.matmul_flops_per_s)


class _Memory(DeclaredTable):
    bytes: Positive
    bandwidth_bytes_per_s: Positive
    source: Source


class _MatmulPeaks(DeclaredTable):
    fp32: Positive
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None
    fp8: Positive | None = None
    fp4: Positive | None = None
    source: Source


class _Link(DeclaredTable):
    bandwidth_bytes_per_s: Positive
    latency_s: Positive
    source: Source

    def record(self) -> Link:
        return Link(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=self.latency_s)


class _IntraHost(_Link):
    devices: Count | None = None


class _Pair(_Link):
    devices: Annotated[int, Field(ge=2)]

    def domain(self) -> LinkDomain:
        return LinkDomain(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=self.latency_s, devices=self.devices)


class _Network(_Link):
    ports: Positive | None = None


class _File(DeclaredTable):
    """Validates a whole file; `oppa.problem.devices` reads its aliases."""

    description: str = ""
    devices_per_host: Count
    aliases: list[str] = Field(default_factory=list)
    shared_aliases: list[str] = Field(default_factory=list)
    slow_nodes: list[str] = Field(default_factory=list)
    memory: _Memory
    matmul_flops_per_s: _MatmulPeaks
    intra_host: _IntraHost
    inter_host: _Network
    pair: _Pair | None = None
    host_link: _Link | None = None
    coefficients: dict[str, CoefficientTable] = Field(default_factory=dict)


def load_hardware(name: str) -> Hardware:
    """Return the device with this id.

    Raises:
        InputError: there is none; or its file has an unknown key, lacks a number or a source, or has a number that is not positive.
    """
    path = catalog.find(CATALOG, name)
    return _hardware(read(_File, path, error=InputError), path.stem, source=str(path), on_cpu=path.stem == CPU)


def read_hardware(hardware: HardwareFile, *, on_cpu: bool) -> Hardware:
    """Return the device that a job's own file describes; raises InputError, as `load_hardware` does, if the file is wrong."""
    source = f"{hardware.name}.toml"
    file = validate(_File, parse(hardware.text, source=source, error=InputError), error=InputError, source=source)
    return _hardware(file, hardware.name, source=source, on_cpu=on_cpu)


def _hardware(file: _File, name: str, *, source: str, on_cpu: bool) -> Hardware:
    known = [key for model in _MODELS for key in load_beliefs(model)]
    for key in file.coefficients:
        require_known(key, known, f"`{source}`: `[coefficients]` has no key `{key}`")
    _check_links(file, source)
    memory_bytes = round(file.memory.bytes)
    return Hardware(
        name=name,
        devices_per_host=file.devices_per_host,
        memory_bytes=memory_bytes,
        usable_bytes=memory_bytes if on_cpu else usable_of(memory_bytes),
        memory_bandwidth_bytes_per_s=file.memory.bandwidth_bytes_per_s,
        matmul_flops_per_s=file.matmul_flops_per_s.model_dump(exclude={"source"}, exclude_none=True),
        intra_host=file.intra_host.record(),
        ports=file.inter_host.ports or file.devices_per_host,
        inter_host=file.inter_host.record(),
        link_devices=file.intra_host.devices or file.devices_per_host,
        pair=file.pair.domain() if file.pair else None,
        host_link=file.host_link.record() if file.host_link else None,
        asynchronous=not on_cpu,
        coefficients={key: table.record() for key, table in file.coefficients.items()},
        slow_nodes=tuple(file.slow_nodes),
    )


def _check_links(file: _File, source: str) -> None:
    """Check that links connect whole groups of devices.

    Raises:
        InputError: the link of a host connects fewer devices than a host has; or those of a pair do not divide a host into several pairs.
    """
    count, wide, pair = file.devices_per_host, file.intra_host.devices, file.pair
    if wide is not None and wide < count:
        message = f"`{source}`, [intra_host]: `devices = {wide}` is less than `devices_per_host = {count}`"
        raise InputError(message, hint="give the number of devices that the link connects, or remove the key if it is a host's")
    if pair is not None and (count % pair.devices or count == pair.devices):
        message = f"`{source}`, [pair]: `devices = {pair.devices}` does not divide `devices_per_host = {count}` into several groups"
        raise InputError(message, hint="give the number of devices of a host that the faster link connects, or remove the table")


def whole_memory_bytes(cluster: Cluster) -> int | None:
    """Return the whole memory of a cluster's device; None if neither the catalogue nor a file of the job has the device."""
    named = cluster.hardware or identify(cluster.device, cluster.usable_bytes) not in (None, GENERIC)
    return hardware_of(cluster).memory_bytes if named else None


def hardware_of(cluster: Cluster) -> Hardware:
    """Return the cluster's device with the cluster's own memory and links and, on a CPU, its share of cores.

    A job's own hardware file replaces that of the catalogue. The generic `GPU` replaces a device that the catalogue does not have.
    A network that the job states is that of a whole host. Hosts of CPUs have one port, and those of GPUs as many as the catalogue has.
    """
    if cluster.hardware:
        known = read_hardware(cluster.hardware, on_cpu=not cluster.on_cuda)
    else:
        known = load_hardware(identify(cluster.device, cluster.usable_bytes) or GENERIC)
    cores = min(cluster.cpus, default=1.0) if not cluster.on_cuda else 1.0
    return dataclasses.replace(
        known,
        devices_per_host=cluster.devices_per_host,
        usable_bytes=cluster.usable_bytes,
        matmul_flops_per_s={name: peak * cores for name, peak in known.matmul_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=known.memory_bandwidth_bytes_per_s * cores,
        intra_host=cluster.intra_host or known.intra_host,
        inter_host=_share(cluster.inter_host, cluster.devices_per_host) if cluster.inter_host else known.inter_host,
        ports=1 if cluster.inter_host and not cluster.on_cuda else known.ports,
        link_devices=known.link_devices if known.link_devices > known.devices_per_host else cluster.devices_per_host,
        pair=None if cluster.intra_host else known.pair,
        stalls=known.stalls and not cluster.inter_host,
    )


def _share(network: Link, devices: int) -> Link:
    """Return one device's share of the network of its host."""
    return dataclasses.replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s / devices)
