"""Load the devices and the links between them from `priors/hardware/*.toml`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.cost.coefficients import Belief, load_beliefs, read_beliefs
from oppa.cost.declaration import positive, read_toml, require_keys, require_source, require_table
from oppa.errors import InputError
from oppa.problem.cluster import Cluster, Link, usable_of
from oppa.problem.devices import CATALOG, CPU, GENERIC, identify

_TABLES = {
    "memory": ("bytes", "bandwidth_bytes_per_s"),
    "matmul_flops_per_s": ("fp32", "tf32", "fp16", "bf16"),
    "intra_host": ("bandwidth_bytes_per_s", "latency_s"),
    "inter_host": ("bandwidth_bytes_per_s", "latency_s", "ports"),
    "stall": ("probability_per_host", "seconds"),
}
_MAY_LACK = ("tf32", "fp16", "bf16", "stall", "ports")
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


def load_hardware(name: str) -> Hardware:
    """Return the device with this id.

    Raises:
        InputError: there is none; or its file has an unknown key, lacks a number or a source, or has a number that is not positive.
    """
    path = catalog.find(CATALOG, name)
    values, where = read_toml(path), f"`{path}`"
    require_keys(values, ["description", "devices_per_host", "aliases", "shared_aliases", *_TABLES, "coefficients"], where)
    numbers = {table: _numbers(values, table, path) for table in _TABLES if table in values or table not in _MAY_LACK}
    better = read_beliefs(values.get("coefficients", {}), path)
    require_keys(better, [key for model in _MODELS for key in load_beliefs(model)], f"{where}, [coefficients],")
    memory_bytes, on_cpu = round(numbers["memory"]["bytes"]), path.stem == CPU
    stall = numbers.get("stall", {"probability_per_host": 0.0, "seconds": 0.0})
    return Hardware(
        name=path.stem,
        devices_per_host=round(positive(values, "devices_per_host", where)),
        usable_bytes=memory_bytes if on_cpu else usable_of(memory_bytes),
        memory_bandwidth_bytes_per_s=numbers["memory"]["bandwidth_bytes_per_s"],
        matmul_flops_per_s=numbers["matmul_flops_per_s"],
        intra_host=Link(**numbers["intra_host"]),
        ports=numbers["inter_host"].pop("ports", positive(values, "devices_per_host", where)),
        inter_host=Link(**numbers["inter_host"]),
        stall_probability_per_host=stall["probability_per_host"],
        stall_s=stall["seconds"],
        asynchronous=not on_cpu,
        coefficients=better,
    )


def hardware_of(cluster: Cluster) -> Hardware:
    """Return the cluster's device with the cluster's own memory and links and, on a CPU, its share of cores.

    The generic `GPU` stands in for a device that the catalogue does not have.
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


def _numbers(values: Mapping[str, Any], table: str, path: Path) -> dict[str, float]:
    """Return the checked numbers of one table; optional ones only if they are present."""
    where, known = f"`{path}`, [{table}],", _TABLES[table]
    given = values.get(table, {})
    require_table(given, where)
    require_keys(given, [*known, "source"], where)
    require_source(given, where)
    return {key: positive(given, key, where) for key in known if key in given or key not in _MAY_LACK}
