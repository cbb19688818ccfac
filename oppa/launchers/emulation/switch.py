"""Emulate the link between hosts: a relay carries their packets with a given bandwidth and latency.

The relay is a separate program that uses only the standard library. Each host has a full-duplex line to the switch of its rack. A line
carries one packet at a time in each direction, in order. All packets from a host share its line, and so do all packets to it. Packets
between racks also share the uplinks of both racks. All lines on the path carry a packet at the same time. It arrives after the latency.

The relay stops reading from a host whose packets wait too long. Further packets stay in the queue of its device, and none is lost.
"""

import contextlib
import heapq
import math
import os
import select
import sys
import time
from typing import NoReturn

from oppa.trials import processes

HEADER_BYTES = 10
"""Length of the header of a TUN device that leaves segmentation and checksums to the receiver (`struct virtio_net_hdr`)."""
BACKLOG_S = 2e-3
"""Seconds by which a line may be booked in advance. They exceed the wake-up time of this process, so that a busy line has no gaps."""

_SOONER_S = 20e-6
"""Seconds within which due packets are delivered at once, because waking up again would take longer."""
_PACKET_BYTES = HEADER_BYTES + 65535
_DESTINATION = HEADER_BYTES + 19
"""Offset of the last byte of an IPv4 packet's destination address."""


def argv(
    owner: int, devices: list[int], *, bandwidth_bytes_per_s: float, latency_s: float, racks: int, uplink_bytes_per_s: float
) -> list[str]:
    """Return the command line that starts the relay as a child of `owner`; `devices` are inherited file descriptors, one per host."""
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        processes.program("oppa.launchers.emulation.switch"),
        *map(str, (owner, bandwidth_bytes_per_s, latency_s, racks, uplink_bytes_per_s, *devices)),
    ]


class _Line:
    """Models one direction of a line, which carries one packet at a time."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def carry(self, size_bytes: int, begun_s: float, carried_s: float) -> tuple[float, float]:
        """Return when this line starts and finishes carrying a packet, given the same two times of the previous line."""
        begun_s = max(begun_s, self._free_s)
        self._free_s = max(carried_s, begun_s + size_bytes / self._bytes_per_s)
        return begun_s, self._free_s


class Switch:
    """Computes when packets arrive; times are arguments, in monotonic seconds."""

    def __init__(
        self, hosts: int, *, bandwidth_bytes_per_s: float, latency_s: float, racks: int = 1, uplink_bytes_per_s: float = math.inf
    ) -> None:
        self._latency_s = latency_s
        self._racks = [host * racks // hosts for host in range(hosts)]
        self._out, self._in = ([_Line(bandwidth_bytes_per_s) for _ in range(hosts)] for _ in range(2))
        self._up, self._down = ([_Line(uplink_bytes_per_s) for _ in range(racks)] for _ in range(2))
        self._carried_s = [0.0] * hosts  # when the last packet of each host has been carried

    def arrival_s(self, source: int, destination: int, size_bytes: int, now_s: float) -> float:
        """Return the arrival time of a packet that is sent now."""
        begun_s = carried_s = now_s
        for line in self._way(source, destination):
            begun_s, carried_s = line.carry(size_bytes, begun_s, carried_s)
        self._carried_s[source] = max(self._carried_s[source], carried_s)
        return carried_s + self._latency_s

    def _way(self, source: int, destination: int) -> list[_Line]:
        first, last = self._racks[source], self._racks[destination]
        between = [self._up[first], self._down[last]] if first != last else []
        return [self._out[source], *between, self._in[destination]]

    def ready_s(self, source: int) -> float:
        """Return the earliest time at which the relay may read from this host."""
        return self._carried_s[source] - BACKLOG_S


class _Relay:
    """Reads packets from each host's device, and writes them to the destination's device when they arrive."""

    def __init__(self, devices: list[int], switch: Switch) -> None:
        self._devices = devices
        self._switch = switch
        self._under_way: list[tuple[float, int, bytes]] = []
        """Heap of packets in flight: arrival time, destination host, and packet."""

    def run(self) -> NoReturn:
        while True:
            now_s = time.monotonic()
            self._deliver(now_s + _SOONER_S)
            ready_s = [self._switch.ready_s(host) for host in range(len(self._devices))]
            sources = {device: host for host, device in enumerate(self._devices) if ready_s[host] <= now_s}
            wake_s = min([at_s for at_s in ready_s if at_s > now_s] + [packet[0] for packet in self._under_way[:1]], default=None)
            patience_s = None if wake_s is None else max(0.0, wake_s - time.monotonic())
            for device in select.select(list(sources), (), (), patience_s)[0]:
                self._take(sources[device])

    def _deliver(self, until_s: float) -> None:
        while self._under_way and self._under_way[0][0] <= until_s:
            _, host, packet = heapq.heappop(self._under_way)
            with contextlib.suppress(OSError):  # a packet that the host refuses is lost, as on any network
                os.write(self._devices[host], packet)

    def _take(self, source: int) -> None:
        """Read packets of a host until there are none, or until it must wait."""
        with contextlib.suppress(BlockingIOError):
            while self._switch.ready_s(source) <= (now_s := time.monotonic()):
                packet = os.read(self._devices[source], _PACKET_BYTES)
                destination = packet[_DESTINATION] - 1
                if packet[HEADER_BYTES] >> 4 == 4 and 0 <= destination < len(self._devices):
                    arrival_s = self._switch.arrival_s(source, destination, len(packet) - HEADER_BYTES, now_s)
                    heapq.heappush(self._under_way, (arrival_s, destination, packet))


def main() -> NoReturn:
    """Carry packets as `sys.argv` describes, until the owner ends."""
    owner, bandwidth_bytes_per_s, latency_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    racks, uplink_bytes_per_s = int(sys.argv[4]), float(sys.argv[5])
    devices = [int(device) for device in sys.argv[6:]]
    processes.die_with_parent(owner)
    with contextlib.suppress(OSError):
        be_punctual()
    switch = Switch(
        len(devices), bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, racks=racks, uplink_bytes_per_s=uplink_bytes_per_s
    )
    _Relay(devices, switch).run()


def be_punctual() -> None:
    """Run with real-time priority; raises OSError if the kernel refuses it.

    With all cores busy, a link of 200 Mbit/s carried 140 to 160 Mbit/s without it, and 195 with it.
    """
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
