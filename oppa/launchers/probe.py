"""Measure the resources of each host of an allocation, and the link between the first two, by a program on each host."""

import contextlib
import dataclasses
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from oppa.errors import EnvironmentLackingError
from oppa.launchers import network, slurm
from oppa.launchers.agent_client import AgentClient
from oppa.launchers.event_line import write_event
from oppa.problem.cluster import Link
from oppa.problem.detect import Machine, this_machine
from oppa.trials import processes

PATIENCE_S = 120.0
PINGS = 200
STREAM_S = 2.0
CHUNK = bytes(1 << 20)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Holds the resources of the hosts of an allocation: the minimum over all hosts, and the link between two."""

    hosts: int
    machine: Machine
    link: Link | None
    """Link between the first two hosts; None if there is only one."""


def probe(job: str) -> Probe:
    """Measure all hosts of the Slurm job that this process runs in.

    Raises:
        EnvironmentLackingError: Slurm or a host does not answer.
    """
    allocated = slurm.nodes(job)
    hosts = len(allocated)
    words = [f"--jobid={job}", "--overlap", f"--nodes={hosts}", f"--ntasks={hosts}", "--ntasks-per-node=1"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*slurm.srun(), *words, sys.executable, "-P", "-c", processes.program("oppa.launchers.probe")]
        with contextlib.closing(
            AgentClient([command], hosts=hosts, environment=os.environ, grace_s=1.0, log=Path(folder, "probe.log"))
        ) as agents:
            try:
                answers = agents.wait_for("machine", hosts, PATIENCE_S)
                port = next(each["port"] for each in answers if each["host"] == 0)
                agents.tell(address=allocated[0].address, port=port)
                link = agents.wait_for("link", 1, PATIENCE_S)[0] if hosts > 1 else None
            except OSError as error:
                hint = "write the job file by hand, or test the hosts with `srun hostname`"
                raise EnvironmentLackingError(f"the hosts of Slurm's job {job} cannot be measured: {error}", hint=hint) from None
    cpus = min(node.cpus for node in allocated)
    return Probe(
        hosts=hosts,
        machine=_poorest([Machine(**each["machine"]) for each in answers], cpus),
        link=Link(bandwidth_bytes_per_s=link["bandwidth_bytes_per_s"], latency_s=link["latency_s"]) if link else None,
    )


def _poorest(machines: list[Machine], cpus: int) -> Machine:
    first = machines[0]
    return dataclasses.replace(
        first,
        cores=min(cpus, *(machine.cores for machine in machines)),
        memory_bytes=min(machine.memory_bytes for machine in machines),
        gpus=min(machine.gpus for machine in machines),
        gpu_memory_bytes=min(machine.gpu_memory_bytes for machine in machines),
    )


def main() -> None:
    """Report this host's resources. The second host then measures and reports the link to the first one."""
    host = int(os.environ["SLURM_PROCID"])
    with socket.create_server(("", 0)) as server:
        write_event("machine", host=host, machine=dataclasses.asdict(this_machine()), port=server.getsockname()[1])
        if host == 0:
            threading.Thread(target=_answer, args=(server,), daemon=True).start()
        first = json.loads(sys.stdin.readline())
        if host == 1:
            link = measure(first["address"], first["port"])
            fabric = network.infiniband_bytes_per_s()
            write_event("link", host=host, bandwidth_bytes_per_s=max(link.bandwidth_bytes_per_s, fabric), latency_s=link.latency_s)
        sys.stdin.read()


def measure(address: str, port: int) -> Link:
    """Measure the link to a host: one-way latency as half the median round trip, and bandwidth of a stream of two seconds."""
    with socket.create_connection((address, port)) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trip_s = statistics.median(_pings(line))
        began, sent = time.monotonic(), 0
        while time.monotonic() < began + STREAM_S:
            line.sendall(CHUNK)
            sent += len(CHUNK)
        line.shutdown(socket.SHUT_WR)
        while line.recv(1 << 16):
            pass
        return Link(bandwidth_bytes_per_s=sent / (time.monotonic() - began), latency_s=round_trip_s / 2)


def _pings(line: socket.socket) -> Iterator[float]:
    for _ in range(PINGS):
        began = time.monotonic()
        line.sendall(b"?")
        line.recv(1)
        yield time.monotonic() - began


def _answer(server: socket.socket) -> None:
    """Answer each ping with one byte; then read the stream, and close."""
    line, _ = server.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            line.recv(1)
            line.sendall(b"!")
        while line.recv(1 << 20):
            pass
