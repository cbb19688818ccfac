"""Load the devices and the links between them from `priors/hardware/*.toml`."""

import dataclasses
from collections.abc import Mapping

from pydantic import Field

from oppa import catalog
from oppa.cost.coefficients import Belief, CoefficientTable, load_beliefs
from oppa.errors import InputError, require_known
from oppa.problem.cluster import Cluster, Link, usable_of
from oppa.problem.declaration import Count, DeclaredTable, Positive, Source, read
from oppa.problem.devices import CATALOG, CPU, GENERIC, identify

_MODELS = ("step_time", "memory")
"""Names of the files under `priors/` whose coefficients a device may override."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Describes one kind of device: its peaks from data sheets, its links as usually deployed."""

    name: str
    devices_per_host: int
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
    stall_probability_per_host: float = 0.0
    stall_s: float = 0.0
    """Seconds that each micro-batch waits if one of the hosts is slow."""
    asynchronous: bool = True
    """The device computes while its host prepares the next operations; on a CPU, one follows the other."""
    coefficients: Mapping[str, Belief] = dataclasses.field(default_factory=dict)
    """Coefficients that override the general ones on this device."""

    def matmul_peak(self, precision: str) -> float:
        """Return operations per second at a precision; raises InputError if the precision is unknown.

        If the device states no peak for a 16-bit format, that of the other 16-bit format applies, then that of fp32; for tf32, fp32's.
        """
        order = {"fp32": ("fp32",), "tf32": ("tf32", "fp32"), "bf16": ("bf16", "fp16", "fp32"), "fp16": ("fp16", "bf16", "fp32")}
        if precision not in order:
            raise InputError(f"`precision = {precision}` is unknown", hint=f"use one of {', '.join(order)}")
        return next(self.matmul_flops_per_s[name] for name in order[precision] if name in self.matmul_flops_per_s)

    @property
    def default_precision(self) -> str:
        """Return the precision that large models train in on this device: bf16 if it has it, else fp16, else fp32."""
        return next(name for name in ("bf16", "fp16", "fp32") if name in self.matmul_flops_per_s)


class _Memory(DeclaredTable):
    bytes: Positive
    bandwidth_bytes_per_s: Positive
    source: Source


class _MatmulPeaks(DeclaredTable):
    fp32: Positive
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None
    source: Source


class _Link(DeclaredTable):
    bandwidth_bytes_per_s: Positive
    latency_s: Positive
    source: Source

    def record(self) -> Link:
        return Link(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=self.latency_s)


class _Network(_Link):
    ports: Positive | None = None


class _Stall(DeclaredTable):
    probability_per_host: Positive
    seconds: Positive
    source: Source


class _File(DeclaredTable):
    """Validates a whole file; `oppa.problem.devices` reads its aliases."""

    description: str = ""
    devices_per_host: Count
    aliases: list[str] = Field(default_factory=list)
    shared_aliases: list[str] = Field(default_factory=list)
    memory: _Memory
    matmul_flops_per_s: _MatmulPeaks
    intra_host: _Link
    inter_host: _Network
    stall: _Stall | None = None
    coefficients: dict[str, CoefficientTable] = Field(default_factory=dict)


def load_hardware(name: str) -> Hardware:
    """Return the device with this id.

    Raises:
        InputError: there is none; or its file has an unknown key, lacks a number or a source, or has a number that is not positive.
    """
    path = catalog.find(CATALOG, name)
    file = read(_File, path, error=InputError)
    known = [key for model in _MODELS for key in load_beliefs(model)]
    for key in file.coefficients:
        require_known(key, known, f"`{path}`: `[coefficients]` has no key `{key}`")
    memory_bytes, on_cpu = round(file.memory.bytes), path.stem == CPU
    return Hardware(
        name=path.stem,
        devices_per_host=file.devices_per_host,
        usable_bytes=memory_bytes if on_cpu else usable_of(memory_bytes),
        memory_bandwidth_bytes_per_s=file.memory.bandwidth_bytes_per_s,
        matmul_flops_per_s=file.matmul_flops_per_s.model_dump(exclude={"source"}, exclude_none=True),
        intra_host=file.intra_host.record(),
        ports=file.inter_host.ports or file.devices_per_host,
        inter_host=file.inter_host.record(),
        stall_probability_per_host=file.stall.probability_per_host if file.stall else 0.0,
        stall_s=file.stall.seconds if file.stall else 0.0,
        asynchronous=not on_cpu,
        coefficients={key: table.record() for key, table in file.coefficients.items()},
    )


def hardware_of(cluster: Cluster) -> Hardware:
    """Return the cluster's device with the cluster's own memory and links and, on a CPU, its share of cores.

    The generic `GPU` replaces a device that the catalogue does not have.
    """
    known = load_hardware(identify(cluster.device, cluster.usable_bytes) or GENERIC)
    cores = min(cluster.cpus, default=1.0) if not cluster.on_cuda else 1.0
    return dataclasses.replace(
        known,
        devices_per_host=cluster.devices_per_host,
        usable_bytes=cluster.usable_bytes,
        matmul_flops_per_s={name: peak * cores for name, peak in known.matmul_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=known.memory_bandwidth_bytes_per_s * cores,
        intra_host=cluster.intra_host or known.intra_host,
        inter_host=cluster.inter_host or known.inter_host,
        stall_probability_per_host=0.0 if cluster.inter_host else known.stall_probability_per_host,
    )
