"""Create emulated hosts: unnamed network namespaces, each with a TUN device, whose packets the relay in `switch` carries.

Linux and root are required. A namespace exists while a process is in it or holds it open, and a device while a process holds it open.
So nothing is left, however these processes end.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from oppa.errors import EnvironmentLackingError

INTERFACE = "oppa0"
"""Name of the network device on every emulated host."""

_TUN = Path("/dev/net/tun")
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x1, 0x2
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFTXQLEN = 0x8914, 0x8916, 0x891C, 0x8943
_IFF_UP = 0x1
_QUEUE_PACKETS = 10_000
"""Queue length of the device; more than TCP has in flight, so that the device drops no unread packet."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedHost:
    """Describes one of several hosts that this machine emulates."""

    address: str
    namespace: Path
    """Path of the network namespace, for `nsenter --net=`."""

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Let this thread open sockets and start processes on the emulated host, until the context ends."""
        namespace = os.open(self.namespace, os.O_RDONLY)
        try:
            with _away("setns", namespace, _CLONE_NEWNET):
                yield
        finally:
            os.close(namespace)


class Plug(NamedTuple):
    """Holds an emulated host that is not connected yet; `namespace` and `device` are file descriptors."""

    address: str
    namespace: int
    device: int

    def close(self) -> None:
        """Close both descriptors; the host ends unless another process holds it."""
        os.close(self.device)
        os.close(self.namespace)


def make_host(number: int) -> Plug:
    """Create an emulated host; `number` counts from 0 and determines the address.

    Raises:
        EnvironmentLackingError: not Linux, not root, or the kernel or a container refuses namespaces or TUN devices.
    """
    _require_root()
    address = f"10.77.0.{number + 1}"
    privileged = "a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN, such as `docker run --privileged`"
    with _needed("network namespaces", privileged), _away("unshare", _CLONE_NEWNET), contextlib.ExitStack() as undo:
        namespace = os.open(_OWN_NAMESPACE, os.O_RDONLY)
        undo.callback(os.close, namespace)
        with _needed(f"TUN devices (`{_TUN}`)", "`modprobe tun`; a container needs `--device /dev/net/tun` and CAP_NET_ADMIN"):
            device = _open_device()
            undo.callback(os.close, device)
            _configure(address)
        undo.pop_all()
        return Plug(address, namespace, device)


def _require_root() -> None:
    if sys.platform != "linux":
        raise EnvironmentLackingError(f"hosts cannot be emulated on `{sys.platform}`", hint="use Linux, for example in a virtual machine")
    if os.geteuid() != 0:
        raise EnvironmentLackingError(f"only root can emulate hosts; this is user {os.geteuid()}", hint="start it with `sudo`")


@contextlib.contextmanager
def _needed(what: str, hint: str) -> Iterator[None]:
    """Convert an OSError into an EnvironmentLackingError that names what is missing."""
    try:
        yield
    except OSError as error:
        raise EnvironmentLackingError(f"{what} are not available here: {error.strerror}", hint=hint) from error


@contextlib.contextmanager
def _away(call: str, *arguments: int) -> Iterator[None]:
    """Move this thread into the network namespace that a system call selects, and back at the end; other threads do not move."""
    home = os.open(_OWN_NAMESPACE, os.O_RDONLY)
    try:
        _call(call, *arguments)
        try:
            yield
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def _call(name: str, *arguments: int) -> None:
    """Make a system call that Python offers only from 3.12 on; raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _open_device() -> int:
    """Open a TUN device in this thread's namespace. It does not segment TCP's packets, as segmentation would take too long."""
    if not _TUN.exists():
        _TUN.parent.mkdir(exist_ok=True)
        os.mknod(_TUN, stat.S_IFCHR | 0o666, os.makedev(10, 200))
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, _TUNSETIFF, _request(INTERFACE, struct.pack("H", _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    except OSError:
        os.close(device)
        raise
    return device


def _configure(address: str) -> None:
    """Bring up the loopback and TUN devices in this thread's namespace, and give the TUN device its address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, operation, value in (
            ("lo", _SIOCSIFFLAGS, struct.pack("H", _IFF_UP)),
            (INTERFACE, _SIOCSIFTXQLEN, struct.pack("i", _QUEUE_PACKETS)),
            (INTERFACE, _SIOCSIFADDR, _internet(address)),
            (INTERFACE, _SIOCSIFNETMASK, _internet("255.255.255.0")),
            (INTERFACE, _SIOCSIFFLAGS, struct.pack("H", _IFF_UP)),
        ):
            fcntl.ioctl(control, operation, _request(name, value))


def _request(name: str, value: bytes) -> bytes:
    """Return a `struct ifreq`."""
    return struct.pack("16s24s", name.encode(), value)


def _internet(address: str) -> bytes:
    """Return a `struct sockaddr_in`."""
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
