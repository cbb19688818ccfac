"""Resolve where trials run: on this host, in a Slurm allocation, in one that oppa requests, or on emulated hosts."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError, nearest
from oppa.launchers import slurm, tunnel
from oppa.launchers.emulation import pool
from oppa.launchers.hosts import HostPool, HostsLauncher
from oppa.launchers.slurm_job import require_feasible, slurm_job
from oppa.problem.allocation import read_netlab
from oppa.problem.cluster import Cluster
from oppa.trials.host import require_devices
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import Runner

AUTO, LOCAL, SLURM, NETLAB = "auto", "local", "slurm", "netlab"
LAUNCHERS = (AUTO, LOCAL, SLURM, NETLAB)
SLOT = "OPPA_SLOT"
"""Environment variable with the number of this tuner among several parallel ones."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The user's choice of where trials run."""

    launcher: str = AUTO
    parallel: int | None = None
    """Number of parallel trials; None for as many as there are hosts for."""
    options: tuple[str, ...] = ()
    """Options for sbatch."""

    def resolve(self, cluster: Cluster) -> "LaunchRequest":
        """Return the request with a definite launcher. A request that can never be granted is refused at once.

        Raises:
            InputError: the launcher is unknown, or does not have these options.
            EnvironmentLackingError: the environment lacks something that the job needs.
        """
        if self.launcher not in LAUNCHERS:
            raise InputError(f"`--launcher {self.launcher}` is not known", hint=nearest(self.launcher, (AUTO, LOCAL, SLURM)))
        launcher = _usual(cluster) if self.launcher == AUTO else self.launcher
        if launcher in (LOCAL, NETLAB) and (self.parallel or 1) > 1:
            hint = "leave it out: trials that share a machine measure each other"
            raise InputError(f"`--parallel {self.parallel}` needs hosts of Slurm", hint=hint)
        if self.options and (launcher != SLURM or slurm.own_job()):
            raise InputError(f"`--sbatch {self.options[0]}` has no part here", hint="it is for the job that `--launcher slurm` asks for")
        settled = dataclasses.replace(self, launcher=launcher)
        settled._require(cluster)
        return settled

    def _require(self, cluster: Cluster) -> None:
        if self.launcher == LOCAL:
            require_devices(cluster)
        elif self.launcher == NETLAB:
            pool.require_hosts(cluster)
        elif job := slurm.own_job():
            slurm.require_fitting(cluster, slurm.nodes(job), job)
        else:
            require_feasible(cluster, self.options, slots=self.parallel or 1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The hosts on which this tuner runs trials, and the number of tuners that can run in parallel."""

    place: HostPool | None = None
    """Host pool of this tuner; None for this host."""
    tuners: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables that give other tuners access to the same hosts."""

    def launcher(self, runner: Runner, *, study: str, grace_s: float) -> LocalLauncher | HostsLauncher:
        """Return the launcher of this tuner's trials."""
        if self.place is None:
            return LocalLauncher(runner, study=study, grace_s=grace_s)
        return HostsLauncher(runner, self.place, study=study, grace_s=grace_s)

    @contextlib.contextmanager
    def reached(self, port: int, *, grace_s: float, log: Path) -> Iterator[int]:
        """Forward a port of the first host's loopback to `port` of this machine, and yield its number.

        Args:
            log: File for errors of the far end.

        Raises:
            EnvironmentLackingError: the host does not answer.
        """
        if (place := self.place) is None:
            yield port
            return
        dug = tunnel.tunnel(lambda there: place.on_first(tunnel.argv(there)), port, environment=os.environ, grace_s=grace_s, log=log)
        with contextlib.ExitStack() as stack:
            try:
                there = stack.enter_context(dug)
            except OSError as error:
                message = f"host {place.names[0]} cannot reach this one: {error}"
                raise EnvironmentLackingError(message, hint=f"`{log}` may say why") from None
            yield there


@contextlib.contextmanager
def open_backend(
    request: LaunchRequest, cluster: Cluster, folder: Path, *, name: str, grace_s: float, on_tick: Callable[[], None]
) -> Iterator[Backend]:
    """Open the engine of a resolved request, and yield it.

    Args:
        folder: Folder of the study, on a file system that all hosts share.
        name: Name of the job, for messages.
        on_tick: Called while hosts are waited for; its exceptions are passed on.

    Raises:
        EnvironmentLackingError: the hosts are gone, or can never be granted.
    """
    if request.launcher == LOCAL:
        yield Backend()
    elif request.launcher == NETLAB:
        yield Backend(place=pool.EmulatedHostPool.of(cluster))
    elif job := slurm.own_job():
        yield _within(job, request, cluster)
    else:
        with slurm_job(
            cluster, request.options, slots=request.parallel or 1, name=name, folder=folder, grace_s=grace_s, on_tick=on_tick
        ) as job:
            yield _within(job, request, cluster)


def _within(job: str, request: LaunchRequest, cluster: Cluster) -> Backend:
    allocated = slurm.nodes(job)
    slurm.require_fitting(cluster, allocated, job)
    groups = len(allocated) // cluster.hosts
    tuners = request.parallel or groups
    room = groups * slurm.room(cluster, allocated)
    if tuners > room:
        raise EnvironmentLackingError(f"`--parallel {tuners}`: Slurm's job {job} has room for {room}", hint=f"use {room} or less")
    place = slurm.SlurmHosts(job, cluster, allocated, slot=int(os.environ.get(SLOT, "0")), slots=tuners)
    return Backend(place=place, tuners=tuners, environment={"SLURM_JOB_ID": job})


def _usual(cluster: Cluster) -> str:
    """Return the launcher for `auto`: emulated hosts, a Slurm allocation, or this host, whichever this process was started with."""
    if read_netlab():
        return NETLAB
    if slurm.own_job():
        return SLURM
    if cluster.hosts > 1:
        hint = f"start it inside an allocation (`salloc --nodes={cluster.hosts}`), or let oppa ask for one: `--launcher slurm`"
        raise EnvironmentLackingError(f"this job has {cluster.hosts} hosts, and only this one is at hand", hint=hint)
    return LOCAL
