"""Forward a loopback port of a job's first host to a loopback port of this host, through the pipes of `srun` or `nsenter`.

A program on that host, the remote end, listens on its loopback. It writes received data to its stdout, and reads answers from its stdin.
So no port is open to a network. Both ends exchange frames: number of a connection, length, and data of that length. Length 0 means that
the connection has ended. The first frame has the remote end's port.
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
from oppa.launchers.network import LOOPBACK
from oppa.trials import processes
from oppa.trials.guarded_process import GuardedProcess

READY_S = 60.0
"""Seconds in which the remote end must answer; a Slurm step may have to wait."""
AGAIN_S = 2.0
"""Seconds between the end of a remote end and the start of the next."""
_FRAME = struct.Struct("!II")
_PORT = 0
"""Connection number of the frame that contains the port; connections are numbered from 1."""
_CHUNK = 1 << 16

_log = logging.getLogger(__name__)


def argv(port: int) -> list[str]:
    """Return the command line of the remote end, which listens on `port` if that is free there."""
    return [sys.executable, "-P", "-c", processes.program("oppa.launchers.tunnel"), str(port)]


class _End:
    """Implements one end of the tunnel. A thread per connection reads from it, so that one read does not delay another.

    One thread alone numbers new connections: that of the listener, or on the other end `carry`. Any thread may end a connection, and the
    first to take it out of `_connections` closes it. `_lock` keeps frames whole.

    Args:
        opened: Opens the local side of a connection that begins on the other side; None if none begins there.
    """

    def __init__(self, hearing: BinaryIO, speaking: io.FileIO, opened: Callable[[], socket.socket] | None = None) -> None:
        self._hearing, self._speaking, self._opened = hearing, speaking, opened
        self._connections: dict[int, socket.socket] = {}
        self._numbers = 0
        """Number of the last connection that began here."""
        self._known = set[int]()
        """Numbers of the connections that began on the other side; the data of the first one may come after those of later ones."""
        self._lock = threading.Lock()

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on this listener, and send its port to the other side."""
        self._say(_PORT, str(listener.getsockname()[1]).encode())
        self._in_background(self._accept, listener)

    def carry(self, on_port: Callable[[int], None] = lambda _: None) -> None:
        """Deliver received frames until the input closes; `on_port` receives the port on which the other side listens."""
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
                connection.shutdown(socket.SHUT_RDWR)  # so that its thread ends
            connection.close()

    def _read(self, number: int, connection: socket.socket) -> None:
        """Send the data of a connection to the other side until it ends."""
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
            if number not in self._known and self._opened is not None:
                self._known.add(number)
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
    """Forward a port on the remote host's loopback to `port` on this host, and yield its number. A remote end that ends is replaced.

    Args:
        command: Returns the command that starts the remote end, given the port on which it should listen if that is free.
        log: File for the output of the remote end.

    Raises:
        OSError: the remote end does not answer.
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
    """Runs the local end of the tunnel, in a thread of its own."""

    def __init__(
        self, command: Callable[[int], list[str]], target: int, *, environment: Mapping[str, str], grace_s: float, log: Path
    ) -> None:
        self._command, self._target = command, target
        self._environment, self._grace_s, self._log_file = environment, grace_s, log
        self._guard: GuardedProcess | None = None
        self._lock, self._stopped, self.ready = threading.Lock(), threading.Event(), threading.Event()
        self.port: int | None = None
        self.failure = ""

    def run(self) -> None:
        """Start the remote end again whenever it ends, until `stop`."""
        while not self._stopped.is_set():
            try:
                self.failure = self._carry_once(self._command(self.port or self._target)) or self.failure
            except (EnvironmentLackingError, OSError) as error:  # for example if Slurm does not answer
                self.failure = str(error)
            self.ready.set()
            _log.info("the remote end of a tunnel has ended: %s", self.failure)
            self._stopped.wait(AGAIN_S)

    def stop(self) -> None:
        """End the remote end, which also ends the thread that reads from it."""
        with self._lock:
            self._stopped.set()
            if self._guard is not None:
                self._guard.close()

    def _carry_once(self, command: list[str]) -> str:
        """Run the remote end once; return how it ended."""
        with self._lock:
            if self._stopped.is_set():
                return ""
            self._guard, ours_in, ours_out = GuardedProcess.with_pipes(
                "the remote end of a tunnel", command, environment=self._environment, grace_s=self._grace_s, log=self._log_file
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
    """Run the remote end: listen, and carry data until stdin closes."""
    with _listener(int(sys.argv[1])) as listener, os.fdopen(1, "wb", buffering=0) as out:
        end = _End(sys.stdin.buffer, out)
        end.listen(listener)
        end.carry()
        os._exit(0)  # without waiting for threads that still accept or read


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError:  # the port is taken
        return socket.create_server((LOOPBACK, 0))
