"""A port on another host's loopback that leads to one of ours."""

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from oppa.launchers import tunnel
from oppa.launchers.emulation.netlab import Netlab, netlab_lacking
from oppa.launchers.provider import Backend
from oppa.launchers.slurm import SlurmHosts, nodes
from oppa.problem.cluster import Link
from oppa.trials import processes
from tests.trials.conftest import script_spec

LACKING = "; ".join(netlab_lacking())
needs_hosts = pytest.mark.skipif(bool(LACKING), reason=f"hosts cannot be emulated here: {LACKING}")

pytestmark = pytest.mark.slow


@pytest.fixture
def service():
    """A port of this machine's where all is said back, until the other side has said all."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(connection) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def dig(tmp_path):
    """A tunnel from wherever a command leads; nothing of it stays."""
    before = processes.descendants(os.getpid())

    def dig(port, command=tunnel.argv):
        return tunnel.tunnel(command, port, environment=os.environ, grace_s=1, log=tmp_path / "tunnel.log")

    yield dig
    assert not processes.descendants(os.getpid()) - before


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def said_back(connection: socket.socket, data: bytes) -> bytes:
    def say() -> None:
        with contextlib.suppress(OSError):  # who hangs up is heard of below
            connection.sendall(data)

    threading.Thread(target=say).start()
    heard = b""
    while len(heard) < len(data) and (more := connection.recv(1 << 16)):
        heard += more
    return heard


def test_what_is_said_at_one_end_is_heard_at_the_other(service, dig) -> None:
    long = os.urandom(3_000_000)
    with dig(service) as port, connected(port) as first, connected(port) as second:
        assert said_back(first, b"one") == b"one"
        assert said_back(second, long) == long
        assert said_back(first, b"again") == b"again"


def test_a_connection_may_speak_after_a_later_one(service, dig) -> None:
    with dig(service) as port, connected(port) as first, connected(port) as second:
        assert said_back(second, b"two") == b"two"
        assert said_back(first, b"one") == b"one"


def test_a_connection_ends_at_both_ends(service, dig) -> None:
    with dig(service) as port:
        with connected(port) as first:
            assert said_back(first, b"one") == b"one"
        with connected(port) as second:
            assert said_back(second, b"two") == b"two"


def test_a_service_that_is_away_hangs_up(dig) -> None:
    with socket.socket() as away:
        away.bind(("127.0.0.1", 0))  # and does not listen
        with dig(away.getsockname()[1]) as port, connected(port) as line:
            line.sendall(b"anybody?")
            assert line.recv(1) == b""


def test_a_far_end_that_is_killed_is_replaced_where_it_was(service, dig) -> None:
    with dig(service) as port:
        with connected(port) as line:
            assert said_back(line, b"one") == b"one"
            os.kill(far_end(), signal.SIGKILL)
            assert line.recv(1) == b""
        deadline_s = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), connected(port) as line:
                if said_back(line, b"two") == b"two":
                    break
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def far_end() -> int:
    """Its process."""
    listeners = processes.tagged(lambda environment: processes.LAUNCHER_TAG in environment)
    (found,) = (each.pid for each in listeners if b"oppa.launchers import tunnel" in _command_line(each.pid) and not _is_shim(each.pid))
    return found


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_shim(pid: int) -> bool:
    return b"shim" in _command_line(pid)


def test_a_host_that_never_answers_is_reported(service, dig) -> None:
    with pytest.raises(OSError, match="exited with code 3"), dig(service, lambda _: ["sh", "-c", "exit 3"]):
        pass


@needs_hosts
def test_an_emulated_host_reaches_this_machine(service, dig) -> None:
    with Netlab(1, Link(bandwidth_bytes_per_s=1e6, latency_s=0)) as lab:
        (host,) = lab.hosts
        with dig(service, lambda port: ["nsenter", f"--net={host.namespace}", *tunnel.argv(port)]) as port:
            with host.entered():
                line = connected(port)
            with line:
                assert said_back(line, b"from afar") == b"from afar"


def test_this_machine_needs_none(tmp_path) -> None:
    with Backend().reached(8765, grace_s=1, log=tmp_path / "tunnel.log") as port:
        assert port == 8765
    assert not (tmp_path / "tunnel.log").exists()


def test_a_node_of_slurms_reaches_this_machine(slurm, service, tmp_path, monkeypatch) -> None:
    """Its nodes share this machine's loopback: the port is another one, since ours is taken there."""
    with slurm.allocation("--cpus-per-task=2", "--mem=1000") as allocation:
        for name, value in allocation.environment.items():
            if name.startswith("SLURM"):
                monkeypatch.setenv(name, value)
        pool = SlurmHosts(allocation.job, script_spec("", ranks=2, steps=1).cluster, nodes(allocation.job))
        with Backend(pool=pool).reached(service, grace_s=1, log=tmp_path / "tunnel.log") as port, connected(port) as line:
            assert port != service
            data = os.urandom(100_000)
            assert said_back(line, data) == data
