"""Find the links over which a group of ranks communicates.

The tensor-parallel index of a rank varies fastest, then the data-parallel, then the pipeline's.

Notation:
    size, stride    a group: ranks 0, stride, 2 stride, ...; all groups of this form, shifted, communicate at the same time
    island          the devices that a link joins, a host for the last link within it; the network joins all
    below           an island of the previous link; for the first link, a device

A ring around a group crosses the border of each island with members once in either direction. An island of c devices has c / shared_by
ports, and c / (members below) groups compete for them. So each group gets bandwidth * (members below) / shared_by.
"""

import dataclasses
import functools

from oppa.simulator.hardware import SimulatedHardware, SimulatedLink


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Describes a group's share of a link that it crosses."""

    link: str
    bandwidth_bytes_per_s: float
    """Bandwidth of one group, while all groups of its form communicate."""
    port_bytes_per_s: float
    """Bandwidth of one device, while all devices communicate over the link."""
    latency_s: float
    members_below: int
    """Members of the group in one island that this link joins to others."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Describes ranks that communicate, and the links between them, the nearest first."""

    size: int
    crossings: tuple[Crossing, ...]

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Return the bandwidth of a ring: that of its narrowest link."""
        return min(crossing.bandwidth_bytes_per_s for crossing in self.crossings)

    @property
    def latency_s(self) -> float:
        """Return the latency of one step of a ring: that of its slowest link, because all members step together."""
        return max(crossing.latency_s for crossing in self.crossings)


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """Describes the links of a cluster of `hosts` hosts."""

    hardware: SimulatedHardware
    hosts: int

    @property
    def devices(self) -> int:
        """Return the number of devices of all hosts."""
        return self.hosts * self.hardware.devices_per_host

    @functools.cached_property
    def links(self) -> tuple[SimulatedLink, ...]:
        """Return all links, the nearest first, each with the number of devices that it joins."""
        network = self.hardware.network.model_copy(update={"devices": self.devices})
        return (*self.hardware.link, network) if self.hosts > 1 else self.hardware.link

    def group(self, size: int, stride: int) -> RankGroup:
        """Return the group of `size` ranks that are `stride` apart."""
        crossings, below = [], 1
        for link in self.links:
            inside, here = self._members(below, size, stride), self._members(link.devices, size, stride)
            if here > inside:
                crossings.append(
                    Crossing(
                        link=link.name,
                        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * inside / link.shared_by,
                        port_bytes_per_s=link.bandwidth_bytes_per_s / link.shared_by,
                        latency_s=link.latency_s,
                        members_below=inside,
                    )
                )
            below = link.devices
        return RankGroup(size=size, crossings=tuple(crossings))

    def hop(self, here: int, there: int, *, senders: int) -> Crossing:
        """Return the share of a link that a rank has to send to another, while other ranks do the same.

        The `senders` consecutive ranks from `here` on send equally far. The transfer that needs the farthest link determines the link.
        """
        for link in self.links:
            if here // link.devices == (there + senders - 1) // link.devices:
                share = link.bandwidth_bytes_per_s / min(link.shared_by, senders)
                return Crossing(
                    link=link.name, bandwidth_bytes_per_s=share, port_bytes_per_s=share, latency_s=link.latency_s, members_below=1
                )
        raise AssertionError(f"rank {there} is beyond the cluster of {self.devices}")

    def _members(self, island: int, size: int, stride: int) -> int:
        """Return how many members of a group lie in one island.

        If islands have room for whole groups but are not filled by them, a border cuts some group; its larger half counts.
        """
        if (size - 1) * stride < island < self.devices and island % (size * stride):
            return -(-size // 2)
        return min(size, -(-island // stride))
