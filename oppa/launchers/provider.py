"""Define what a launcher provides: hosts on which this tuner and parallel ones run trials.

`local`, `slurm`, `srun`, `ray` and `netlab` are built in. An installed package adds a launcher by an entry point of the group
`oppa.launchers`. The entry point names a class that implements `HostProvider` and is called without arguments.
"""

import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Protocol

from oppa import extensions
from oppa.errors import EnvironmentLackingError, InputError, nearest
from oppa.extensions import OptionValue
from oppa.launchers import tunnel
from oppa.launchers.hosts import HostPool, HostsLauncher
from oppa.problem.cluster import Cluster
from oppa.problem.training import STEP
from oppa.trials.launcher import RevocableHosts
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import Runner

GROUP = "oppa.launchers"
AUTO, LOCAL, SLURM, NETLAB, RAY = "auto", "local", "slurm", "netlab", "ray"
BUILT_IN = (
    EntryPoint(LOCAL, "oppa.launchers.local_provider:LocalProvider", GROUP),
    EntryPoint(SLURM, "oppa.launchers.slurm_provider:SlurmProvider", GROUP),
    EntryPoint(STEP, "oppa.launchers.step_provider:StepProvider", GROUP),
    EntryPoint(RAY, "oppa.launchers.ray.provider:RayProvider", GROUP),
    EntryPoint(NETLAB, "oppa.launchers.emulation.pool:EmulatedProvider", GROUP),
)
SLOT = "OPPA_SLOT"
"""Environment variable with the number of this tuner among several parallel ones."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Describes the hosts that a study needs."""

    cluster: Cluster
    options: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    """Options of the launcher, which have been checked."""
    parallel: int | None = None
    """Number of parallel trials; None for as many as the hosts allow."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTuner:
    """Describes the tuner that waits for hosts."""

    folder: Path
    """Folder of the study, on a file system that all hosts share."""
    name: str
    """Name of the job, for messages."""
    grace_s: float
    """Seconds between the request to end a process and its kill."""
    on_tick: Callable[[], None]
    """Called while the tuner waits for hosts; its exceptions propagate."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Holds the hosts on which this tuner runs trials, and the number of tuners that can run in parallel."""

    pool: HostPool | None = None
    """Host pool of this tuner; None for this host."""
    started_on: Callable[[], Sequence[str]] | None = None
    """Returns the names of the hosts on which a launch line starts ranks by itself; None without a host pool for this host."""
    allocation: RevocableHosts | None = None
    """These hosts; None if they cannot be withdrawn."""
    tuners: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables that give other tuners access to the same hosts."""
    has_more: bool = False
    """True if a further request to the launcher is granted other hosts than these."""

    @property
    def is_alone(self) -> bool:
        """Return True if no parallel tuner of the study runs trials, which might be on the same hosts."""
        return self.tuners == 1 and SLOT not in os.environ

    def hosts(self) -> Sequence[str]:
        """Return the names of the hosts of the present trial; empty if they are not known."""
        if self.pool is not None:
            return self.pool.names
        return self.started_on() if self.started_on else (socket.gethostname(),)

    def launcher(self, runner: Runner, *, study: str, grace_s: float) -> LocalLauncher | HostsLauncher:
        """Return the launcher of this tuner's trials."""
        if self.pool is None:
            return LocalLauncher(runner, study=study, grace_s=grace_s, hosts=self.hosts(), allocation=self.allocation)
        return HostsLauncher(runner, self.pool, study=study, grace_s=grace_s)

    @contextlib.contextmanager
    def reached(self, port: int, *, grace_s: float, log: Path) -> Iterator[int]:
        """Forward a port of the first host's loopback to `port` of this machine, and yield its number.

        Args:
            log: File for errors of the remote end.

        Raises:
            EnvironmentLackingError: the host does not answer.
        """
        if (pool := self.pool) is None:
            yield port
            return
        dug = tunnel.tunnel(lambda there: pool.on_first(tunnel.argv(there)), port, environment=os.environ, grace_s=grace_s, log=log)
        with contextlib.ExitStack() as stack:
            try:
                there = stack.enter_context(dug)
            except OSError as error:
                message = f"host {pool.names[0]} cannot reach this one: {error}"
                raise EnvironmentLackingError(message, hint=f"read `{log}` for the reason") from None
            yield there


class HostProvider(Protocol):
    """Provides the hosts of a study as a launcher, from the check of the request until the study ends."""

    @property
    def options(self) -> Collection[str]:
        """Return the names of the options that it accepts, as [launcher.options] spells them."""

    def require(self, request: HostRequest) -> None:
        """Refuse a request that can never be granted, before anything starts.

        Raises:
            InputError: the value of an option is wrong.
            EnvironmentLackingError: hosts, devices or a program are missing.
        """

    def open(self, request: HostRequest, tuner: WaitingTuner) -> AbstractContextManager[Backend]:
        """Wait until the hosts are granted, hold them, and release them when the context ends.

        Raises:
            EnvironmentLackingError: the hosts were lost, or can never be granted.
        """


def make_provider(name: str) -> HostProvider:
    """Return the launcher of that name.

    Raises:
        InputError: no launcher has that name, or its entry point does not name a launcher.
        EnvironmentLackingError: it imports a package that is not installed.
    """
    found = {each.name: each for each in BUILT_IN}
    if name not in found:
        found = extensions.parts(GROUP, BUILT_IN)
    if name not in found:
        raise InputError(f"`{name}` is not a launcher", hint=nearest(name, (AUTO, *found)))
    path = found[name].value
    provider: HostProvider = extensions.load_class(path, kind="launcher", protocol=HostProvider)()
    extensions.require_methods(provider, HostProvider, path=path, kind="launcher")
    return provider


def require_one_trial(request: HostRequest) -> None:
    """Raise InputError if parallel trials are requested from a launcher whose trials share a machine."""
    if (request.parallel or 1) > 1:
        message = f"`parallel = {request.parallel}` in [launcher] needs a launcher with hosts for each trial, such as `slurm` or `ray`"
        raise InputError(message, hint="remove it: trials that share a machine disturb each other's measurements")
