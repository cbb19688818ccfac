"""What runs trials, and where: this host, an allocation of Slurm, one that Slurm is asked for, or hosts that this machine plays."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError, nearest
from oppa.places import emulated_place, slurm, tunnel
from oppa.places.hosts import HostsLauncher, Place
from oppa.places.slurm_job import require_feasible, slurm_job
from oppa.problem.allocation import read_netlab
from oppa.problem.cluster import Cluster
from oppa.trials.host import require_devices
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import Runner

AUTO, LOCAL, SLURM, NETLAB = "auto", "local", "slurm", "netlab"
LAUNCHERS = (AUTO, LOCAL, SLURM, NETLAB)
SLOT = "OPPA_SLOT"
"""The variable that says which of several tuners, side by side, this one is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Where the user wants trials to run."""

    launcher: str = AUTO
    parallel: int | None = None
    """Trials side by side; None: as many as there are hosts for."""
    options: tuple[str, ...] = ()
    """For sbatch."""

    def resolve(self, cluster: Cluster) -> "Request":
        """The request with its launcher settled, refused at once where it could never be granted.

        Raises:
            InputError: an unknown launcher, or options that it does not have.
            EnvironmentLackingError: what the job needs is not here.
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
            emulated_place.require_hosts(cluster)
        elif job := slurm.own_job():
            slurm.require_fitting(cluster, slurm.nodes(job), job)
        else:
            require_feasible(cluster, self.options, slots=self.parallel or 1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What runs trials: this tuner's part of it, and how many tuners can work side by side."""

    place: Place | None = None
    """None: this host."""
    tuners: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What tells other tuners of it."""

    def launcher(self, runner: Runner, *, study: str, grace_s: float) -> LocalLauncher | HostsLauncher:
        """What starts this tuner's trials."""
        if self.place is None:
            return LocalLauncher(runner, study=study, grace_s=grace_s)
        return HostsLauncher(runner, self.place, study=study, grace_s=grace_s)

    @contextlib.contextmanager
    def reached(self, port: int, *, grace_s: float, log: Path) -> Iterator[int]:
        """While this lasts, a port of the first host's loopback leads to `port` of this machine's: which one.

        Args:
            log: For what goes wrong there.

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
def open_engine(
    request: Request, cluster: Cluster, folder: Path, *, name: str, grace_s: float, on_tick: Callable[[], None]
) -> Iterator[Engine]:
    """The engine of a request that was settled, while this lasts.

    Args:
        folder: The study's, seen by all hosts.
        name: Of the job, for people.
        on_tick: Called while hosts are waited for; what it raises is passed on.

    Raises:
        EnvironmentLackingError: the hosts are gone, or will never be had.
    """
    if request.launcher == LOCAL:
        yield Engine()
    elif request.launcher == NETLAB:
        yield Engine(place=emulated_place.EmulatedPlace.of(cluster))
    elif job := slurm.own_job():
        yield _within(job, request, cluster)
    else:
        with slurm_job(
            cluster, request.options, slots=request.parallel or 1, name=name, folder=folder, grace_s=grace_s, on_tick=on_tick
        ) as job:
            yield _within(job, request, cluster)


def _within(job: str, request: Request, cluster: Cluster) -> Engine:
    allocated = slurm.nodes(job)
    slurm.require_fitting(cluster, allocated, job)
    groups = len(allocated) // cluster.hosts
    tuners = request.parallel or groups
    room = groups * slurm.room(cluster, allocated)
    if tuners > room:
        raise EnvironmentLackingError(f"`--parallel {tuners}`: Slurm's job {job} has room for {room}", hint=f"use {room} or less")
    place = slurm.SlurmHosts(job, cluster, allocated, slot=int(os.environ.get(SLOT, "0")), slots=tuners)
    return Engine(place=place, tuners=tuners, environment={"SLURM_JOB_ID": job})


def _usual(cluster: Cluster) -> str:
    """Where trials run if nobody says it: on the hosts that we were given."""
    if read_netlab():
        return NETLAB
    if slurm.own_job():
        return SLURM
    if cluster.hosts > 1:
        hint = f"start it inside an allocation (`salloc --nodes={cluster.hosts}`), or let oppa ask for one: `--launcher slurm`"
        raise EnvironmentLackingError(f"this job has {cluster.hosts} hosts, and only this one is at hand", hint=hint)
    return LOCAL
