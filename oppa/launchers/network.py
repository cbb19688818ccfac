"""Find this host's addresses, network interfaces and InfiniBand bandwidth, as the kernel reports them."""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915


def address_towards(peer: str) -> str:
    """Return the IPv4 source address of packets to `peer`, a name or an address; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        address: str = probe.getsockname()[0]
        return address


def interface_towards(peer: str) -> str:
    """Return the network interface for packets to `peer`; empty if the kernel reports none."""
    with contextlib.suppress(OSError):
        here = address_towards(peer)
        own = [name for _, name in socket.if_nameindex() if _address_of(name) == here]
        return "lo" if here.startswith("127.") or "lo" in own else next(iter(own), "")
    return ""


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


def infiniband_bytes_per_s(root: Path = Path("/")) -> float:
    """Return the total bandwidth of this host's active InfiniBand ports (rates such as `400 Gb/sec (4X NDR)`); 0 if there are none."""
    ports = [port for port in root.glob("sys/class/infiniband/*/ports/*") if "ACTIVE" in (port / "state").read_text()]
    return sum(float((port / "rate").read_text().split()[0]) for port in ports) * 1e9 / 8
