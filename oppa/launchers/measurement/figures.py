"""Define the records of a measurement: figures with their repeats, and what they were measured on."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import TypeAdapter

from oppa.units import MIB

HOST, NETWORK = "host", "network"
"""Scopes of collectives: the devices of one host, and one device of each host."""
MATMUL, MEMORY, TO_DEVICE, TO_HOST = "matmul", "memory", "host to device", "device to host"
ALL_REDUCE, ALL_GATHER, SEND = "all-reduce", "all-gather", "send"


_GPU_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 8192))
_CPU_SHAPES = ((512, 512, 512), (512, 1024, 1024))

MOST_FIGURES = 60
"""Upper bound of the figures of a measurement, of which a host with eight GPUs has about 45; it sets limits of time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """Holds the sizes that a measurement uses, and the least time of each figure."""

    figure_s: float
    repeats: int = 5
    matmul_shapes: tuple[tuple[int, int, int], ...]
    """Rows, inner dimension and columns of matrix products; the fastest one counts."""
    memory_bytes: int
    """Size of each of the three operands of an addition: larger than any cache."""
    copy_bytes: int
    small_bytes: int
    """Payload of collectives whose time is latency."""
    large_bytes: int
    """Payload of collectives whose time is bandwidth."""

    @classmethod
    def of(cls, *, on_cuda: bool, figure_s: float) -> Self:
        """Return the sizes for CUDA devices, or for CPUs."""
        return cls(
            figure_s=figure_s,
            matmul_shapes=_GPU_SHAPES if on_cuda else _CPU_SHAPES,
            memory_bytes=512 * MIB if on_cuda else 64 * MIB,
            copy_bytes=256 * MIB if on_cuda else 0,
            small_bytes=4096,
            large_bytes=256 * MIB if on_cuda else 8 * MIB,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Holds the repeated measurements of one figure: the seconds of each and, if the figure is a rate, the work done in them."""

    what: str
    detail: str = ""
    """The precision of a matrix product, the scope of a collective, or the two ranks of a transfer."""
    ranks: int = 1
    payload_bytes: int = 0
    work: float = 0.0
    """Operations or bytes of one repeat; 0 if the figure is the time itself."""
    seconds: tuple[float, ...]

    @property
    def kind(self) -> tuple[str, str]:
        """Return what the figure measures, and its detail."""
        return self.what, self.detail

    @property
    def samples(self) -> list[float]:
        """Return the repeats: rates per second, or seconds."""
        return [self.work / each for each in self.seconds] if self.work else list(self.seconds)

    @property
    def median(self) -> float:
        """Return the median of the repeats."""
        return statistics.median(self.samples)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with median and extremes."""
        shown = {"median": self.median, "low": min(self.samples), "high": max(self.samples)}
        return {**dataclasses.asdict(self), "seconds": list(self.seconds), **shown}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNode:
    """Holds the rates of one node: of its slowest device, because a step waits for it, and of its link."""

    name: str
    """Name of the node in Slurm, or else its own."""
    figures: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "figures": [figure.to_dict() for figure in self.figures]}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HardwareMeasurement:
    """Holds the figures of some devices, and what they were measured on."""

    device: str
    """Name that the driver gives the device; `CPU` for a core."""
    memory_bytes: int
    """Whole memory of a device; on CPUs, a rank's share of the host's."""
    hosts: int
    devices_per_host: int
    software: str
    figures: tuple[Figure, ...]
    nodes: tuple[MeasuredNode, ...] = ()
    """Rates of each node; empty for a single host."""

    def find(self, what: str, detail: str | None = None, *, small: bool = False) -> Figure | None:
        """Return the fastest figure of a kind and detail; None if there is none."""
        found = [each for each in self.figures if each.what == what and detail in (None, each.detail) and small == (not each.work)]
        return (min if small else max)(found, key=lambda each: each.median, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        listed = {"figures": [figure.to_dict() for figure in self.figures], "nodes": [node.to_dict() for node in self.nodes]}
        return {**dataclasses.asdict(self), **listed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the measurement that `to_dict` wrote."""
        return TypeAdapter(cls).validate_python(values)


def joined(several: Iterable[Figure]) -> Figure:
    """Return one figure with the repeats of several devices' measurements of it, as if all had done the work of the first.

    Devices differ in the shape that is fastest, and so in its work.
    """
    first, *others = several
    scaled = (seconds * (first.work / other.work if first.work else 1.0) for other in others for seconds in other.seconds)
    return dataclasses.replace(first, seconds=(*first.seconds, *scaled))
