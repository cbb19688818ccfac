"""Who talks to whom over which links. Ranks are laid out with tensor parallelism fastest, then data, then pipeline parallelism.

Notation:
    size, stride    a group: ranks 0, stride, 2 stride, ...; all groups like it, shifted, talk at the same time
    island          the devices that a link joins, a host for the last within it; the network joins all
    below           an island of the link before; of the first link, a device

A ring around a group crosses the border of each island that it has members in once either way. An island of c devices has c / shared_by
ports, and c / (members below) groups want through them, so each gets bandwidth * (members below) / shared_by.
"""

import dataclasses
import functools

from oppa.simulator.hardware import Hardware, Link


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a group has of a link that it crosses."""

    link: str
    bandwidth_bytes_per_s: float
    """For one group, while all like it talk."""
    port_bytes_per_s: float
    """For one device, while all devices talk over it."""
    latency_s: float
    members_below: int
    """Of the group, in an island that this link joins to others."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate, and the links between them, the nearest first."""

    size: int
    crossings: tuple[Crossing, ...]

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Of a ring: that of its narrowest link."""
        return min(crossing.bandwidth_bytes_per_s for crossing in self.crossings)

    @property
    def latency_s(self) -> float:
        """Of a step of a ring, which all members take together: that of its slowest link."""
        return max(crossing.latency_s for crossing in self.crossings)


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """The links of a cluster of some hosts."""

    hardware: Hardware
    hosts: int

    @property
    def devices(self) -> int:
        """Of all hosts."""
        return self.hosts * self.hardware.devices_per_host

    @functools.cached_property
    def links(self) -> tuple[Link, ...]:
        """All links, the nearest first, each with the number of devices that it joins."""
        network = self.hardware.network.model_copy(update={"devices": self.devices})
        return (*self.hardware.link, network) if self.hosts > 1 else self.hardware.link

    def group(self, size: int, stride: int) -> Group:
        """The group of so many ranks, each so far from the next."""
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
        return Group(size=size, crossings=tuple(crossings))

    def hop(self, here: int, there: int, *, senders: int) -> Crossing:
        """What a rank has to send to another, while so many ranks beginning with it do the same: of these, the one that goes furthest."""
        for link in self.links:
            if here // link.devices == (there + senders - 1) // link.devices:
                share = link.bandwidth_bytes_per_s / min(link.shared_by, senders)
                return Crossing(
                    link=link.name, bandwidth_bytes_per_s=share, port_bytes_per_s=share, latency_s=link.latency_s, members_below=1
                )
        raise AssertionError(f"rank {there} is beyond the cluster of {self.devices}")

    def _members(self, island: int, size: int, stride: int) -> int:
        """How many of a group lie in an island: of one that is cut, where islands hold whole groups but are not filled with them."""
        if (size - 1) * stride < island < self.devices and island % (size * stride):
            return -(-size // 2)
        return min(size, -(-island // stride))
