"""Implement the launcher `ray`: hosts are nodes of a Ray cluster, each held by a bundle of a placement group."""

import contextlib
import dataclasses
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
from oppa.launchers.ray.cluster import Bundle, named
from oppa.launchers.ray.holder import Hold
from oppa.launchers.ray.step import HostStep
from oppa.problem.cluster import Cluster
from oppa.trials import logs, processes
from oppa.trials.trial_folder import TrialSpec

ANSWER_S = 60.0
"""Seconds in which a cluster must answer."""
LEAVE_S = 5.0
"""Seconds that a holder may take to disconnect from the cluster."""
RETURN_S = 120
"""Seconds in which a lost cluster may return to its address, for example because its head restarts."""
RESUME = "the same command resumes once the cluster is available again; `head_return_s` in [launcher.options] waits longer"
RETRY_S = 2.0
"""Seconds between two tries to connect to a lost cluster."""
POLL_S = 0.05

_log = logging.getLogger(__name__)


class RayProvider:
    """Provides nodes of a Ray cluster; the launcher `ray`."""

    options = ("address", "accelerator_type", "autoscaling", "cpus_per_host", "head_return_s")

    def require(self, request: HostRequest) -> None:
        """Refuse more nodes than the cluster has, unless its autoscaler adds some."""
        hosts, bundle = request.cluster.hosts * (request.parallel or 1), bundle_of(request.cluster, request.options)
        _return_s(request)
        fitting = _fitting(request)
        if fitting < hosts and request.options.get("autoscaling") is not True:
            hint = "change [cluster], or set `autoscaling = true` in [launcher.options] to wait for nodes that the cluster adds"
            raise EnvironmentLackingError(f"this job needs {hosts} nodes with {bundle} each; the Ray cluster has {fitting}", hint=hint)

    @contextlib.contextmanager
    def open(self, request: HostRequest, tuner: WaitingTuner) -> Iterator[Backend]:
        """Yield hosts. Each parallel tuner holds hosts of its own, so that none waits for another one's trial."""
        hold = Hold(address=_address(request), name="", hosts=request.cluster.hosts, bundle=bundle_of(request.cluster, request.options))
        with contextlib.closing(Holder(hold, grace_s=tuner.grace_s, log=tuner.folder / "ray.log", return_s=_return_s(request))) as holder:
            fitting = holder.fitting()
            if not hold.address:
                _log.warning("no address is given: using this machine's Ray cluster, %s", holder.hold.address)
            holder.wait(tuner.on_tick)
            tuners = request.parallel or max(1, fitting // request.cluster.hosts)
            yield Backend(pool=RayHosts(holder), tuners=tuners, environment={"RAY_ADDRESS": holder.hold.address})


def _address(request: HostRequest) -> str:
    """Return the address of the cluster; empty if the request and RAY_ADDRESS name none."""
    return str(request.options.get("address", "")) or named()


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


def _return_s(request: HostRequest) -> float:
    """Return the seconds that a lost cluster has to return; raises InputError if the option is no such number."""
    value = request.options.get("head_return_s", RETURN_S)
    if type(value) not in (int, float) or not 0 <= float(value) < math.inf:
        raise InputError(f"`head_return_s = {json.dumps(value)}` in [launcher.options] is not a number of seconds", hint="use 0 or more")
    return float(value)


def _fitting(request: HostRequest) -> int:
    """Return the number of nodes of the cluster that have the resources of a host, in use or not."""
    hold = Hold(address=_address(request), name="", hosts=0, bundle=bundle_of(request.cluster, request.options))
    with TemporaryDirectory() as folder, contextlib.closing(Holder(hold, grace_s=1.0, log=Path(folder, "ray.log"))) as holder:
        return holder.fitting()


class Holder:
    """Runs the process that holds a placement group (`holder.py`), and reads its reports. A cluster that is lost may return."""

    def __init__(self, hold: Hold, *, grace_s: float, log: Path, return_s: float = RETURN_S) -> None:
        self.hold = hold
        self._grace_s, self._log, self._return_s = grace_s, log, return_s
        self._fitting: int | None = None
        self._retry_at: float | None = None
        """When to connect again; None while the holder runs."""
        self._until = 0.0
        """Time until which a loss of the cluster is waited out, once it has granted hosts."""
        self.hosts: tuple[Mapping[str, str], ...] = ()
        """Names and addresses of the hosts; empty while they are not granted."""
        self.reason = ""
        """Reason why the cluster has not granted the hosts."""
        self._process = self._started()

    def _started(self) -> LineProcess:
        self.hold = dataclasses.replace(self.hold, name=f"oppa-{os.urandom(6).hex()}")
        argv = [sys.executable, "-P", "-c", processes.program("oppa.launchers.ray.holder"), json.dumps(dataclasses.asdict(self.hold))]
        return LineProcess("the holder", argv, environment=os.environ, grace_s=self._grace_s, log=self._log)

    def refresh(self) -> None:
        """Read what the holder has reported since the last call.

        Raises:
            EnvironmentLackingError: the cluster does not answer, or was lost and has not returned.
        """
        if self._retry_at is not None:
            if time.monotonic() < self._retry_at:
                return
            self.close()
            self._process, self._retry_at = self._started(), None
        ended = self._process.ended()  # checked before the events, so that the last one is read
        try:
            for line in self._process.read():
                self._hear(line)
            if ended and (self.hold.hosts or self._fitting is None):
                raise EnvironmentLackingError(f"the holder ended: {ended}", hint=f"it printed: {logs.last_words(self._log) or 'nothing'}")
        except EnvironmentLackingError as error:
            self._lose(error)

    def _lose(self, error: EnvironmentLackingError) -> None:
        """Plan another try, if the cluster has granted hosts and may still return; raise an error otherwise."""
        now, message = time.monotonic(), f"the Ray cluster at {self.hold.address} was lost"
        if not self._until:
            raise error
        if now > self._until:
            raise EnvironmentLackingError(f"{message}, and did not return: {error.message}", hint=RESUME)
        if self._until == math.inf:
            self._until = now + self._return_s
            self.hosts, self.reason = (), f"{message}, and has {self._return_s:g} s to return: {error.message}"
        self._retry_at = now + RETRY_S

    def _hear(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            return  # Ray itself prints, for example when a node is lost
        if event["event"] == "error":
            raise EnvironmentLackingError(str(event["message"]), hint=str(event["hint"]))
        if event["event"] == "cluster":
            self._fitting = event["fitting"]
            self.hold = dataclasses.replace(self.hold, address=event["address"])
        elif event["event"] == "held":
            self.hosts, self.reason, self._until = tuple(event["hosts"]), "", math.inf
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
        warned = ""
        while not self.granted():
            if self.reason and self.reason != warned:
                _log.warning("waiting for nodes of the Ray cluster: %s", self.reason)
                warned = self.reason
            on_tick()
            time.sleep(POLL_S)

    def close(self) -> None:
        """Return the hosts to the cluster."""
        self._process.hang_up()
        self._process.wait_ended(LEAVE_S)
        self._process.close()


class RayHosts:
    """Provides the nodes of a placement group as a host pool. Ray moves the group to other nodes if one is lost."""

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
        return [sys.executable, "-P", "-c", processes.program("oppa.launchers.ray.step"), json.dumps(dataclasses.asdict(step))]

    def revoked(self) -> str:
        """Return why the nodes were withdrawn: one of them was lost, or the cluster is; empty while all of them live."""
        try:
            hosts = self._holder.granted()
        except EnvironmentLackingError as error:
            return error.message
        return self._holder.reason or ("" if hosts == self._hosts else "Ray has moved the job to other nodes")

    def kill(self) -> None:
        """Do nothing: Ray ends the actors of the step, whose process has ended."""
