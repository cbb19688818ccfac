"""A port on a job's first host that leads to one of ours: from loopback to loopback, over the wire by which hosts are reached anyway.

A program on that host listens on its loopback. What comes in there goes out through its stdout, and what comes back through its stdin,
which are `srun`'s, or `nsenter`'s: no port is open to a network. Both ends speak in frames: the number of a connection, a length, and so
many bytes; none of them say that it has ended. The first frame tells the port.
"""

import contextlib
import io
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from oppa.errors import EnvironmentLackingError
from oppa.places.network import LOOPBACK
from oppa.trials import processes
from oppa.trials.guard import Guard

READY_S = 60.0
"""In which the far end must be there; a step of Slurm's may have to wait."""
AGAIN_S = 2.0
"""Between a far end that has gone and another."""
_FRAME = struct.Struct("!II")
_PORT = 0
"""The number under which the port is told; connections have numbers from 1 on."""
_CHUNK = 1 << 16

_log = logging.getLogger(__name__)


def argv(port: int) -> list[str]:
    """What runs on the host; it listens on `port`, if that is free there."""
    return [sys.executable, "-P", "-c", processes.program("oppa.places.tunnel"), str(port)]


class _End:
    """Carries between a wire and the connections of its own side, a thread for each: neither waits for another to be read.

    Args:
        opened: What a connection that begins on the other side leads to; None: none begins there.
    """

    def __init__(self, hearing: BinaryIO, speaking: io.FileIO, opened: Callable[[], socket.socket] | None = None) -> None:
        self._hearing, self._speaking, self._opened = hearing, speaking, opened
        self._connections: dict[int, socket.socket] = {}
        self._numbers = 0
        """Of the connections so far."""
        self._lock = threading.Lock()

    def listen(self, listener: socket.socket) -> None:
        """Take what connects there, and tell the other side where that is."""
        self._say(_PORT, str(listener.getsockname()[1]).encode())
        self._in_background(self._accept, listener)

    def carry(self, on_port: Callable[[int], None] = lambda _: None) -> None:
        """What is heard, until the wire closes; `on_port` is told where the other side listens."""
        while len(header := self._hearing.read(_FRAME.size)) == _FRAME.size:
            number, size = _FRAME.unpack(header)
            payload = self._hearing.read(size)
            if number == _PORT:
                on_port(int(payload))
            else:
                self._deliver(number, payload)
        with self._lock:
            self._speaking.close()
        for number in list(self._connections):
            self._end(number)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            self._numbers += 1
            self._begin(self._numbers, connection)

    def _begin(self, number: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[number] = connection
        self._in_background(self._read, number, connection)

    def _end(self, number: int) -> None:
        if (connection := self._connections.pop(number, None)) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # its thread hears of it
            connection.close()

    def _read(self, number: int, connection: socket.socket) -> None:
        """From a connection to the wire, until it ends."""
        data = b"x"
        while data:
            try:
                data = connection.recv(_CHUNK)
            except OSError:
                data = b""
            self._say(number, data)
        self._end(number)

    def _deliver(self, number: int, payload: bytes) -> None:
        if not payload:
            self._end(number)
            return
        try:
            if number > self._numbers and self._opened is not None:
                self._numbers = number
                self._begin(number, self._opened())
            if (connection := self._connections.get(number)) is not None:
                connection.sendall(payload)
        except OSError:
            self._end(number)
            self._say(number, b"")

    def _say(self, number: int, payload: bytes) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            if not self._speaking.closed:
                data = _FRAME.pack(number, len(payload)) + payload
                while data:
                    data = data[self._speaking.write(data) :]

    @staticmethod
    def _in_background(work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="tunnel", daemon=True).start()


@contextlib.contextmanager
def tunnel(command: Callable[[int], list[str]], port: int, *, environment: Mapping[str, str], grace_s: float, log: Path) -> Iterator[int]:
    """While this lasts, a port on the far host's loopback leads to `port` on ours: which one. A far end that goes is replaced.

    Args:
        command: Starts the far end for a port that it shall listen on, if that is free there.
        log: What the far end prints.

    Raises:
        OSError: if it does not answer.
    """
    near = _Near(command, port, environment=environment, grace_s=grace_s, log=log)
    thread = threading.Thread(target=near.run, name="tunnel", daemon=True)
    thread.start()
    try:
        if not near.ready.wait(READY_S) or near.port is None:
            raise OSError(near.failure or f"no answer within {READY_S:g} s")
        yield near.port
    finally:
        near.stop()
        thread.join()


class _Near:
    """Our end, in a thread of its own."""

    def __init__(
        self, command: Callable[[int], list[str]], target: int, *, environment: Mapping[str, str], grace_s: float, log: Path
    ) -> None:
        self._command, self._target = command, target
        self._environment, self._grace_s, self._log_file = environment, grace_s, log
        self._guard: Guard | None = None
        self._lock, self._stopped, self.ready = threading.Lock(), threading.Event(), threading.Event()
        self.port: int | None = None
        self.failure = ""

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopped.is_set():
            try:
                self.failure = self._carry_once(self._command(self.port or self._target)) or self.failure
            except (EnvironmentLackingError, OSError) as error:  # Slurm does not answer
                self.failure = str(error)
            self.ready.set()
            _log.info("the far end of a tunnel has gone: %s", self.failure)
            self._stopped.wait(AGAIN_S)

    def stop(self) -> None:
        """End the far end, and with it what hears it."""
        with self._lock:
            self._stopped.set()
            if self._guard is not None:
                self._guard.close()

    def _carry_once(self, command: list[str]) -> str:
        """One life of the far end; how it ended."""
        with self._lock:
            if self._stopped.is_set():
                return ""
            self._guard, ours_in, ours_out = Guard.with_pipes(
                "the far end of a tunnel", command, environment=self._environment, grace_s=self._grace_s, log=self._log_file
            )
        try:
            with os.fdopen(ours_out, "rb") as hearing, os.fdopen(ours_in, "wb", buffering=0) as speaking:
                _End(hearing, speaking, lambda: socket.create_connection((LOOPBACK, self._target))).carry(self._known)
            return self._guard.ended()
        finally:
            with self._lock:
                self._guard.close()

    def _known(self, port: int) -> None:
        self.port = self.port or port
        self.ready.set()


def main() -> None:
    """The far end: listen, and carry until stdin closes."""
    with _listener(int(sys.argv[1])) as listener, os.fdopen(1, "wb", buffering=0) as out:
        end = _End(sys.stdin.buffer, out)
        end.listen(listener)
        end.carry()
        os._exit(0)  # whatever still waits for a connection


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError:  # taken
        return socket.create_server((LOOPBACK, 0))
