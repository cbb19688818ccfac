"""The hosts that this machine plays, as a place for trials: `oppa netlab` says in OPPA_NETLAB which they are."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self

from oppa.errors import EnvironmentLackingError
from oppa.places.agent import HOST, Task
from oppa.problem.allocation import read_netlab
from oppa.problem.cluster import Cluster
from oppa.trials.exclusion import exclusive
from oppa.trials.wire import TrialSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedPlace:
    """All hosts of a netlab, or as many as a job needs."""

    addresses: tuple[str, ...]
    namespaces: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """For a job that was found to fit."""
        hosts = read_netlab()["hosts"][: cluster.hosts]
        return cls(addresses=tuple(host["address"] for host in hosts), namespaces=tuple(host["namespace"] for host in hosts))

    @property
    def names(self) -> tuple[str, ...]:
        """They have none but their addresses."""
        return self.addresses

    def devices(self, spec: TrialSpec, on_tick: Callable[[], None]) -> AbstractContextManager[None]:
        """They share this machine's cores."""
        return exclusive(spec.cluster, on_tick)

    def commands(self, task: Task) -> list[list[str]]:
        """An agent inside each namespace."""
        return [["nsenter", f"--net={space}", "env", f"{HOST}={host}", *task.argv] for host, space in enumerate(self.namespaces)]

    def on_first(self, argv: list[str]) -> list[str]:
        """Inside its namespace."""
        return ["nsenter", f"--net={self.namespaces[0]}", *argv]

    def revoked(self) -> str:
        """Nobody takes them away."""
        return ""

    def kill(self) -> None:
        """All that ran there were our descendants."""


def require_hosts(cluster: Cluster) -> None:
    """Refuse a job that needs more than `oppa netlab` was asked for; raises EnvironmentLackingError."""
    told = read_netlab()
    if not told:
        hint = f"start it as `oppa netlab --hosts {cluster.hosts} ... -- oppa tune ...`"
        raise EnvironmentLackingError("no hosts are emulated here", hint=hint)
    for asked, option, has in (
        (cluster.hosts, "hosts", len(told["hosts"])),
        (cluster.devices_per_host, "ranks-per-host", told["ranks_per_host"]),
    ):
        if asked > has:
            message = f"this job has {cluster.hosts} x {cluster.devices_per_host} devices; `oppa netlab --{option}` is {has}"
            raise EnvironmentLackingError(message, hint=f"set `--{option} {asked}`, or change [cluster]")
