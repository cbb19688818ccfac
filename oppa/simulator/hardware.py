"""Reads `priors/clusters/*.toml`: what the simulator takes a cluster to be made of. A job's `device` names the file, its hosts are free.

A link joins groups of `devices` that lie within a host, the smallest first; the network joins the hosts. `shared_by` devices have one port
to it between them: a PCIe switch's uplink, a host's network adapter.
"""

import functools
import typing

from pydantic import Field

from oppa import catalog
from oppa.errors import InputError, nearest
from oppa.problem.cluster import Cluster
from oppa.problem.declaration import Count, Positive, Table, parse, validate

Fraction = typing.Annotated[float, Field(gt=0, le=1)]
FOLDER = "clusters"


class Peaks(Table):
    """`flops_per_s` of `[device]`: peak of dense matrix products, by precision."""

    fp32: Positive
    fp16: Positive
    bf16: Positive
    source: str

    def by_precision(self) -> dict[str, float]:
        """The figures alone."""
        return self.model_dump(exclude={"source"})


class Device(Table):
    """`[device]`: one accelerator."""

    memory_bytes: Count
    """What its driver gives to programs."""
    memory_bandwidth_bytes_per_s: Positive
    memory_efficiency: Fraction
    """The share of the bandwidth that element-wise kernels reach."""
    processors: Count
    """Streaming multiprocessors, or compute units."""
    matmul_efficiency: Fraction
    """The share of the peak that the largest matrix products sustain: clocks under load, pipelines of the processors."""
    flops_per_s: Peaks
    source: str


class HostProcessor(Table):
    """`[host]`: what starts the kernels."""

    operation_s: Positive
    """From one operation of an eager framework to the next."""
    collective_s: Positive
    """To start one collective."""
    source: str


class Link(Table):
    """`[[link]]` and `[network]`, one direction."""

    name: str
    devices: Count = 1
    """How many it joins; of a network, all."""
    shared_by: Count = 1
    bandwidth_bytes_per_s: Positive
    """What collectives reach of it."""
    latency_s: Positive
    """Of one step of a collective."""
    source: str


class Noise(Table):
    """`[noise]`: of what is measured; logarithms' standard deviations, and how often a step is much slower."""

    trial: float = Field(ge=0)
    step: float = Field(ge=0)
    straggler_probability: float = Field(ge=0, le=1)
    straggler_tail: Positive
    """Exponent of the Pareto distribution of a straggler's delay: smaller is heavier."""
    source: str


class Hardware(Table):
    """A whole file."""

    description: str
    devices_per_host: Count
    device: Device
    host: HostProcessor
    link: tuple[Link, ...] = Field(strict=False)
    network: Link
    noise: Noise

    def peak_flops_per_s(self, precision: str) -> float:
        """Of dense matrix products; raises InputError for a precision that the device lacks."""
        peaks = self.device.flops_per_s.by_precision()
        if precision not in peaks:
            raise InputError(f'`precision = "{precision}"` is not simulated', hint=nearest(precision, peaks))
        return peaks[precision]


def simulated_devices() -> list[str]:
    """Devices that a simulated job may name."""
    return sorted(path.stem for path in (catalog.root() / "priors" / FOLDER).glob("*.toml"))


@functools.cache
def load_hardware(device: str) -> Hardware:
    """The file of a device; raises InputError if it has none, or its file is wrong."""
    if device not in simulated_devices():
        raise InputError(f'`device = "{device}"` is not simulated', hint=nearest(device, simulated_devices()))
    path = catalog.root() / "priors" / FOLDER / f"{device}.toml"
    return read_hardware(path.read_text(), source=path.name)


def read_hardware(text: str, *, source: str) -> Hardware:
    """A file's text; raises InputError for what is wrong in it."""
    hardware = validate(Hardware, parse(text, source=source, error=InputError), error=InputError)
    below = 1
    for link in (*hardware.link, hardware.network.model_copy(update={"devices": hardware.devices_per_host})):
        if link.devices % below or below % link.shared_by:
            message = f"`{source}`: `{link.name}` does not fit upon groups of {below}"
            raise InputError(
                message, hint="list links from the smallest to the largest; a port is shared within a group of the link before"
            )
        below = link.devices
    if (joined := hardware.link[-1].devices if hardware.link else 1) != hardware.devices_per_host:
        raise InputError(f"`{source}`: its links join {joined} of {hardware.devices_per_host} devices", hint="join all of a host")
    return hardware


def hardware_of(cluster: Cluster) -> Hardware:
    """The file of a job's cluster; raises InputError where its hosts are not those of the file."""
    hardware = load_hardware(cluster.device)
    if cluster.devices_per_host != hardware.devices_per_host:
        message = (
            f"`devices_per_host = {cluster.devices_per_host}`, but simulated hosts of {cluster.device} have {hardware.devices_per_host}"
        )
        raise InputError(message, hint=f"use {hardware.devices_per_host}, and as many hosts as you like")
    return hardware
