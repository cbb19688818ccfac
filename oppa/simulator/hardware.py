"""Read `priors/clusters/*.toml`, the hardware of simulated clusters.

A job's `device` names the file; its number of hosts is free. A link joins `devices` devices within a host, the smallest group first. The
network joins the hosts. `shared_by` devices share one port to a link, such as a PCIe switch's uplink or a host's network adapter.
"""

import functools
import typing

from pydantic import Field

from oppa import catalog
from oppa.errors import InputError, require_known
from oppa.problem.cluster import Cluster
from oppa.problem.declaration import Count, DeclaredTable, Positive, Source, parse, validate

Fraction = typing.Annotated[float, Field(gt=0, le=1)]
FOLDER = "clusters"


class Peaks(DeclaredTable):
    """Holds `flops_per_s` of `[device]`: the peak of dense matrix products, by precision."""

    fp32: Positive
    fp16: Positive
    bf16: Positive
    source: Source

    def by_precision(self) -> dict[str, float]:
        """Return the peaks by precision, without their source."""
        return self.model_dump(exclude={"source"})


class SimulatedDevice(DeclaredTable):
    """Describes one accelerator: the table `[device]`."""

    memory_bytes: Count
    """Memory that the driver offers to programs."""
    memory_bandwidth_bytes_per_s: Positive
    memory_efficiency: Fraction
    """Share of the bandwidth that element-wise kernels reach."""
    processors: Count
    """Number of streaming multiprocessors or compute units."""
    matmul_efficiency: Fraction
    """Share of the peak that the largest matrix products sustain, given clocks under load and the processors' pipelines."""
    flops_per_s: Peaks
    source: Source


class HostProcessor(DeclaredTable):
    """Describes the host processor, which starts the kernels: the table `[host]`."""

    operation_s: Positive
    """Seconds from one operation of an eager framework to the next."""
    collective_s: Positive
    """Seconds to start one collective."""
    source: Source


class SimulatedLink(DeclaredTable):
    """Describes one direction of a link: a table `[[link]]` or `[network]`."""

    name: str
    devices: Count = 1
    """Number of devices that the link joins; the network joins all."""
    shared_by: Count = 1
    bandwidth_bytes_per_s: Positive
    """Bandwidth that collectives reach."""
    latency_s: Positive
    """Latency of one step of a collective."""
    source: Source


class NoiseModel(DeclaredTable):
    """Describes the noise of measurements: the table `[noise]`.

    It has standard deviations of logarithms, and how often and how much a step is slower.
    """

    trial: float = Field(ge=0)
    step: float = Field(ge=0)
    straggler_probability: float = Field(ge=0, le=1)
    straggler_tail: Positive
    """Exponent of the Pareto distribution of a straggler's delay; a smaller one has a heavier tail."""
    source: Source


class SimulatedHardware(DeclaredTable):
    """Describes the hardware of a simulated cluster: one whole file."""

    description: str
    devices_per_host: Count
    device: SimulatedDevice
    host: HostProcessor
    link: tuple[SimulatedLink, ...] = Field(strict=False)
    network: SimulatedLink
    noise: NoiseModel

    def peak_flops_per_s(self, precision: str) -> float:
        """Return the peak of dense matrix products in operations per second; raises InputError for an unknown precision."""
        peaks = self.device.flops_per_s.by_precision()
        require_known(precision, peaks, f'`precision = "{precision}"` is not simulated')
        return peaks[precision]


def simulated_devices() -> list[str]:
    """Return the names of the devices that a simulated job can use, sorted."""
    return sorted(path.stem for path in (catalog.root() / "priors" / FOLDER).glob("*.toml"))


@functools.cache
def load_hardware(device: str) -> SimulatedHardware:
    """Return the hardware of a device; raises InputError if it has no file, or its file is wrong."""
    require_known(device, simulated_devices(), f'`device = "{device}"` is not simulated')
    path = catalog.root() / "priors" / FOLDER / f"{device}.toml"
    return read_hardware(path.read_text(), source=path.name)


def read_hardware(text: str, *, source: str) -> SimulatedHardware:
    """Return the hardware that a file's text describes; raises InputError if the text is wrong."""
    hardware = validate(SimulatedHardware, parse(text, source=source, error=InputError), error=InputError, source=source)
    below = 1
    for link in (*hardware.link, hardware.network.model_copy(update={"devices": hardware.devices_per_host})):
        if link.devices % below or below % link.shared_by:
            message = f"`{source}`: the link `{link.name}` of {link.devices} devices does not divide into groups of {below}"
            raise InputError(
                message, hint="list links from the smallest to the largest; devices share a port only within a group of the previous link"
            )
        below = link.devices
    if (joined := hardware.link[-1].devices if hardware.link else 1) != hardware.devices_per_host:
        raise InputError(
            f"`{source}`: its links join {joined} of {hardware.devices_per_host} devices",
            hint="declare a link that joins all devices of a host",
        )
    return hardware


def hardware_of(cluster: Cluster) -> SimulatedHardware:
    """Return the hardware of a job's cluster.

    Raises:
        InputError: the device is not simulated, or the cluster's hosts have another number of devices than the file's.
    """
    hardware = load_hardware(cluster.device)
    if cluster.devices_per_host != hardware.devices_per_host:
        message = (
            f"`devices_per_host = {cluster.devices_per_host}`, but simulated hosts of {cluster.device} have {hardware.devices_per_host}"
        )
        raise InputError(message, hint=f"use `devices_per_host = {hardware.devices_per_host}` and any number of hosts")
    return hardware
