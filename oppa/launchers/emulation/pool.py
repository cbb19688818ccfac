"""Implement the launcher `netlab` and its host pool. `oppa emulate` lists the emulated hosts in the variable OPPA_NETLAB."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Self

from oppa.errors import EnvironmentLackingError
from oppa.launchers.agent import HOST, AgentTask
from oppa.launchers.provider import Backend, HostRequest, WaitingTuner, require_one_trial
from oppa.problem.allocation import read_netlab
from oppa.problem.cluster import Cluster
from oppa.trials.device_lock import exclusive
from oppa.trials.trial_folder import TrialSpec


class EmulatedProvider:
    """Provides the hosts of a netlab; the launcher `netlab`."""

    options = ()

    def require(self, request: HostRequest) -> None:
        """Refuse more hosts or ranks than `oppa emulate` has, and parallel trials."""
        require_one_trial(request)
        require_hosts(request.cluster)

    @contextlib.contextmanager
    def open(self, request: HostRequest, tuner: WaitingTuner) -> Iterator[Backend]:
        """Yield the emulated hosts at once."""
        yield Backend(pool=EmulatedHostPool.of(request.cluster))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedHostPool:
    """Provides hosts of a netlab: as many as a job needs."""

    addresses: tuple[str, ...]
    namespaces: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """Return the hosts for a job that `require_hosts` has accepted."""
        hosts = read_netlab()["hosts"][: cluster.hosts]
        return cls(addresses=tuple(host["address"] for host in hosts), namespaces=tuple(host["namespace"] for host in hosts))

    def another(self) -> Self:
        """Return this pool, which has no state."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Return the addresses, as emulated hosts have no names."""
        return self.addresses

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold this machine's devices, which all emulated hosts share."""
        return exclusive(spec.cluster, on_tick)

    def commands(self, task: AgentTask) -> list[list[str]]:
        """Return one command per host, which starts an agent in its namespace."""
        return [["nsenter", f"--net={space}", "env", f"{HOST}={host}", *task.argv] for host, space in enumerate(self.namespaces)]

    def on_first(self, argv: list[str]) -> list[str]:
        """Return a command that runs `argv` in the namespace of the first host."""
        return ["nsenter", f"--net={self.namespaces[0]}", *argv]

    def revoked(self) -> str:
        """Return an empty string: emulated hosts are never withdrawn."""
        return ""

    def kill(self) -> None:
        """Do nothing: all processes on the hosts are descendants of this one, which has ended them."""


def require_hosts(cluster: Cluster) -> None:
    """Refuse a job that needs more hosts or ranks than `oppa emulate` has; raises EnvironmentLackingError."""
    network = read_netlab()
    if not network:
        hint = f"start it as `oppa emulate --hosts {cluster.hosts} ... -- oppa tune ...`"
        raise EnvironmentLackingError("no hosts are emulated here", hint=hint)
    for asked, option, has in (
        (cluster.hosts, "hosts", len(network["hosts"])),
        (cluster.devices_per_host, "ranks-per-host", network["ranks_per_host"]),
    ):
        if asked > has:
            message = f"this job has {cluster.hosts} x {cluster.devices_per_host} devices; `oppa emulate --{option}` is {has}"
            raise EnvironmentLackingError(message, hint=f"set `--{option} {asked}`, or change [cluster]")
