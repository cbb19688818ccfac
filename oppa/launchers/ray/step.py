"""Run one command on the held hosts, and connect all of them to this process's stdin and stdout, as `srun` does.

An actor in each bundle of the placement group starts the command. Its stdin and stdout cross the cluster in calls of the actor, so no port
is opened. If this process or a node dies, Ray ends the actors, and the commands read the end of their stdin. A cluster without a head ends
no actors, so an actor also ends its command if it has heard nothing from this process for LEASE_S.

A step of agents adds an event to their stdout:

    -> {"event": "lost", "host": 1}  the node is gone, or Ray has replaced it; the step ends
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from oppa.launchers.agent import HOST
from oppa.launchers.event_line import LOST, write_event
from oppa.launchers.ray.cluster import connected

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "NEURON_RT_VISIBLE_CORES")
"""Variables in which Ray lists the devices of an actor."""
STDOUT, STDERR = 1, 2
STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
"""Descriptors of a command's output, with the concurrency group of the actor in which each is read."""
PIECE = 1 << 16
BEAT_S = 1.0
"""Seconds between two signs of life that the step sends to its actors."""
LEASE_S = 6.0
"""Seconds without one after which an actor ends its command."""
LOST_CODE = 75
"""Exit code of a step that lost a host."""
REPLACED = "Ray has replaced the node"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """Describes a command on the hosts of a placement group."""

    address: str
    name: str
    """Name of the placement group."""
    nodes: list[str]
    """Ids of the nodes on which the group's first bundles must be."""
    cpus: int
    gpus: int
    argv: list[str]
    agents: bool
    """True if the commands are agents, whose stdout is lines of events; otherwise it is one command, whose stdout is any bytes."""


class HostProcess:
    """Runs a command on a node of the cluster; an actor."""

    def __init__(self, node: str, argv: list[str], environment: dict[str, str], folder: str) -> None:
        import ray

        if (here := ray.get_runtime_context().get_node_id()) != node:
            raise OSError(f"{REPLACED} {node} by {here}")
        devices = {name: os.environ[name] for name in VISIBLE if name in os.environ}
        self._process = subprocess.Popen(
            argv,
            env={**environment, **devices},
            cwd=folder if Path(folder).is_dir() else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._streams = {STDOUT: self._process.stdout, STDERR: self._process.stderr}
        self._heard_at = time.monotonic()  # written by `beat` alone, read by the thread below
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        """End the command, and this actor, if the step is gone."""
        while time.monotonic() < self._heard_at + LEASE_S:
            time.sleep(BEAT_S / 2)
        self.write(b"")
        self._process.wait()
        os._exit(LOST_CODE)

    def beat(self) -> None:
        """Take a sign of life of the step."""
        self._heard_at = time.monotonic()

    def write(self, data: bytes) -> None:
        """Write to the command's stdin; empty data closes it."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            if data:
                stdin.write(data)
            else:
                stdin.close()
        except (BrokenPipeError, ValueError):
            pass  # the command has ended, which `read` reports

    def read(self, stream: int) -> tuple[bytes, int | None]:
        """Wait for output of the command on one of STREAMS, and return it; at its end, return no output and the exit code."""
        data = os.read(self._streams[stream].fileno(), PIECE)
        return data, None if data else self._process.wait()


def main() -> None:
    """Run the step that the command line describes; exit with the largest exit code of its commands."""
    step = HostStep(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # Ray ends the actors of a driver that is gone
    with connected(step.address):
        actors = _actors(step)
        codes = [0] * len(actors)
        readers = [
            threading.Thread(target=_copy_out, args=(actor, stream, host, codes), kwargs={"events": step.agents}, daemon=True)
            for host, actor in enumerate(actors)
            for stream in STREAMS
        ]
        for thread in (*readers, *(threading.Thread(target=each, args=(actors,), daemon=True) for each in (_copy_in, _beat))):
            thread.start()
        for reader in readers:
            reader.join()
    sys.exit(max(codes))


def _actors(step: HostStep) -> list[Any]:
    """Start the command in each bundle of the placement group."""
    import ray
    from ray import cloudpickle
    from ray.util import get_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the Python of Ray's workers need not have oppa
    # Calls of one kind keep their order, and do not wait for other kinds.
    groups = dict.fromkeys(("write", *STREAMS.values(), "beat"), 1)
    kind = ray.remote(num_cpus=step.cpus, num_gpus=step.gpus, max_restarts=0, concurrency_groups=groups)(HostProcess)
    group = get_placement_group(step.name)
    return [
        kind.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=host)).remote(
            node, step.argv, {**os.environ, HOST: str(host)}, str(Path.cwd())
        )
        for host, node in enumerate(step.nodes)
    ]


def _copy_in(actors: list[Any]) -> None:
    """Pass our stdin on to all commands, and its end."""
    data = b"-"
    while data:
        data = os.read(0, PIECE)
        for actor in actors:
            actor.write.options(concurrency_group="write").remote(data)


def _beat(actors: list[Any]) -> None:
    """Send signs of life to all actors until this process ends."""
    while True:
        for actor in actors:
            actor.beat.options(concurrency_group="beat").remote()
        time.sleep(BEAT_S)


def _copy_out(actor: Any, stream: int, host: int, codes: list[int], *, events: bool) -> None:
    """Print a command's output until it ends, in whole lines if it is events. A lost actor ends the step: what still runs is unknown."""
    import ray

    read = actor.read.options(concurrency_group=STREAMS[stream])
    rest, code = b"", None
    while code is None:
        try:
            data, code = ray.get(read.remote(stream))
        except ray.exceptions.RayError as error:
            os.write(2, f"{error}\n".encode())
            could_start = not getattr(error, "actor_init_failed", False) or REPLACED in str(error)
            if events and could_start:
                write_event(LOST, host=host)
            os._exit(LOST_CODE)
        whole, end, rest = (rest + data).rpartition(b"\n") if events and code is None else (rest + data, b"", b"")
        os.write(stream, whole + end)
    codes[host] = code if code >= 0 else 128 - code
