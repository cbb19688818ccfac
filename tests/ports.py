"""Find ports that a test may close and open again."""

import contextlib
import random
import socket

LOWEST, HIGHEST = 10_240, 32_767
"""Linux gives higher ports to connections, and to a program that asks for port 0."""


def free_ports(count: int) -> list[int]:
    """Ports of all addresses that are free now, and that no other process gets by chance."""
    with contextlib.ExitStack() as opened:
        return [_bound(opened.enter_context(socket.socket())) for _ in range(count)]


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]


def _bound(server: socket.socket) -> int:
    while True:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)  # the workers of a test run must not draw alike
        with contextlib.suppress(OSError):
            server.bind(("", port))
            return port
