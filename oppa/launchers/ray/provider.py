"""Implement the launcher `ray`: hosts are nodes of a Ray cluster, each held by a bundle of a placement group."""

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from oppa.errors import EnvironmentLackingError, InputError
from oppa.extensions import OptionValue
from oppa.launchers.agent import AgentTask
from oppa.launchers.line_process import LineProcess
from oppa.launchers.provider import Backend, HostRequest, WaitingTuner
from oppa.launchers.ray.cluster import Bundle
from oppa.launchers.ray.holder import Hold
from oppa.launchers.ray.step import HostStep
from oppa.problem.cluster import Cluster
from oppa.trials import logs, processes
from oppa.trials.trial_folder import TrialSpec

ANSWER_S = 60.0
"""Seconds in which a cluster must answer."""
LEAVE_S = 5.0
"""Seconds that a holder may take to disconnect from the cluster."""
POLL_S = 0.05

_log = logging.getLogger(__name__)


class RayProvider:
    """Provides nodes of a Ray cluster; the launcher `ray`."""

    options = ("address", "accelerator_type", "autoscaling", "cpus_per_host")

    def require(self, request: HostRequest) -> None:
        """Refuse more nodes than the cluster has, unless its autoscaler adds some."""
        hosts, bundle = request.cluster.hosts * (request.parallel or 1), bundle_of(request.cluster, request.options)
        fitting = _fitting(request)
        if fitting < hosts and request.options.get("autoscaling") is not True:
            hint = "change [cluster], or set `autoscaling = true` in [launcher.options] to wait for nodes that the cluster adds"
            raise EnvironmentLackingError(f"this job needs {hosts} nodes with {bundle} each; the Ray cluster has {fitting}", hint=hint)

    @contextlib.contextmanager
    def open(self, request: HostRequest, tuner: WaitingTuner) -> Iterator[Backend]:
        """Yield hosts. Each parallel tuner holds hosts of its own, so that none waits for another one's trial."""
        bundle, address = bundle_of(request.cluster, request.options), str(request.options.get("address", ""))
        tuners = request.parallel or max(1, _fitting(request) // request.cluster.hosts)
        hold = Hold(address=address, name=f"oppa-{os.urandom(6).hex()}", hosts=request.cluster.hosts, bundle=bundle)
        holder = Holder(hold, grace_s=tuner.grace_s, log=tuner.folder / "ray.log")
        with contextlib.closing(holder):
            holder.wait(tuner.on_tick)
            yield Backend(place=RayHosts(holder), tuners=tuners)


def bundle_of(cluster: Cluster, options: Mapping[str, OptionValue]) -> Bundle:
    """Return the resources of a host.

    Raises:
        InputError: the value of an option is wrong.
    """
    cpus = options.get("cpus_per_host", 1 if cluster.on_cuda else max(1, math.ceil(sum(cluster.cpus))))
    if type(cpus) is not int or cpus < 1:
        raise InputError(f"`cpus_per_host = {json.dumps(cpus)}` in [launcher.options] is not a number of CPUs", hint="use 1 or more")
    gpus = cluster.devices_per_host if cluster.on_cuda else 0
    return Bundle(cpus=cpus, gpus=gpus, accelerator_type=str(options.get("accelerator_type", "")))


def _fitting(request: HostRequest) -> int:
    """Return the number of nodes of the cluster that have the resources of a host, in use or not."""
    hold = Hold(address=str(request.options.get("address", "")), name="", hosts=0, bundle=bundle_of(request.cluster, request.options))
    with TemporaryDirectory() as folder, contextlib.closing(Holder(hold, grace_s=1.0, log=Path(folder, "ray.log"))) as holder:
        return holder.fitting()


class Holder:
    """The process that holds a placement group (`holder.py`), and what it reports."""

    def __init__(self, hold: Hold, *, grace_s: float, log: Path) -> None:
        self.hold = hold
        self._log = log
        argv = [sys.executable, "-P", "-c", processes.program("oppa.launchers.ray.holder"), hold.to_json()]
        self._process = LineProcess("the holder", argv, environment=os.environ, grace_s=grace_s, log=log)
        self._fitting: int | None = None
        self.hosts: tuple[Mapping[str, str], ...] = ()
        """Names and addresses of the hosts; empty while they are not granted."""
        self.reason = ""
        """Why they are not granted."""

    def refresh(self) -> None:
        """Read what the holder has reported since the last call.

        Raises:
            EnvironmentLackingError: the cluster does not answer, or is lost.
        """
        ended = self._process.ended()  # checked before the events, so that the last one is read
        for line in self._process.read():
            self._hear(line)
        if ended and (self.hold.hosts or self._fitting is None):
            words = logs.last_words(self._log) or "nothing"
            raise EnvironmentLackingError(f"the Ray cluster is lost: {ended}", hint=f"it printed: {words}")

    def _hear(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            return  # Ray itself prints, for example when a node is lost
        if event["event"] == "error":
            raise EnvironmentLackingError(str(event["message"]), hint=str(event["hint"]))
        if event["event"] == "cluster":
            self._fitting = event["fitting"]
        elif event["event"] == "held":
            self.hosts, self.reason = tuple(event["hosts"]), ""
        else:
            self.hosts, self.reason = (), event["reason"]

    def granted(self) -> tuple[Mapping[str, str], ...]:
        """Return the hosts that are granted now; raises EnvironmentLackingError if the cluster is lost."""
        self.refresh()
        return self.hosts

    def fitting(self) -> int:
        """Wait for the number of nodes that have the resources of a host, and return it.

        Raises:
            EnvironmentLackingError: the cluster does not answer.
        """
        deadline = time.monotonic() + ANSWER_S
        while self._fitting is None:
            self.refresh()
            if time.monotonic() > deadline:
                raise EnvironmentLackingError(
                    f"the Ray cluster has not answered in {ANSWER_S:g} s", hint="run `ray status` on this machine"
                )
            time.sleep(POLL_S)
        return self._fitting

    def wait(self, on_tick: Callable[[], None]) -> None:
        """Return when the hosts are granted; log why they are not.

        Raises:
            EnvironmentLackingError: the cluster is lost.
        """
        told = ""
        while not self.granted():
            if self.reason and self.reason != told:
                _log.warning("waiting for nodes of the Ray cluster: %s", self.reason)
                told = self.reason
            on_tick()
            time.sleep(POLL_S)

    def close(self) -> None:
        """Return the hosts to the cluster."""
        self._process.hang_up()
        self._process.wait_ended(LEAVE_S)
        self._process.close()


class RayHosts:
    """A host pool: the nodes of a placement group. Ray moves the group to other nodes if one is lost."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._hosts = holder.hosts

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the nodes."""
        return tuple(host["address"] for host in self._hosts)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes."""
        return tuple(host["name"] for host in self._hosts)

    @contextlib.contextmanager
    def devices(self, _: TrialSpec, on_tick: Callable[[], None]) -> Iterator[None]:
        """Wait until all nodes are granted, for example after one was lost."""
        self._holder.wait(on_tick)
        self._hosts = self._holder.hosts
        yield

    def commands(self, task: AgentTask) -> list[list[str]]:
        """Return the command that starts an agent on each node. It reports a node that has been replaced since."""
        bundle = self._holder.hold.bundle
        return [self._step(task.argv, hosts=self._hosts, cpus=bundle.cpus, gpus=bundle.gpus, agents=True)]

    def on_first(self, argv: list[str]) -> list[str]:
        """Return a command that runs on the first node, and takes no resources from others."""
        return self._step(argv, hosts=self._hosts[:1], cpus=0, gpus=0, agents=False)

    def _step(self, argv: list[str], *, hosts: Sequence[Mapping[str, str]], cpus: int, gpus: int, agents: bool) -> list[str]:
        hold, nodes = self._holder.hold, [host["node"] for host in hosts]
        step = HostStep(address=hold.address, name=hold.name, nodes=nodes, cpus=cpus, gpus=gpus, argv=argv, agents=agents)
        return [sys.executable, "-P", "-c", processes.program("oppa.launchers.ray.step"), step.to_json()]

    def revoked(self) -> str:
        """Return why the nodes were withdrawn: one of them was lost, or the cluster is; empty while all of them live."""
        try:
            hosts = self._holder.granted()
        except EnvironmentLackingError as error:
            return error.message
        return self._holder.reason or ("" if hosts == self._hosts else "Ray has moved the job to other nodes")

    def kill(self) -> None:
        """Do nothing: Ray ends the actors of the step, whose process has ended."""
