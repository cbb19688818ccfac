"""Resolve where trials run: on this host, in a Slurm allocation, in one that oppa requests, or on the hosts of another launcher."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from oppa.errors import EnvironmentLackingError
from oppa.extensions import OptionValue, require_options
from oppa.launchers import slurm
from oppa.launchers.provider import AUTO, LOCAL, NETLAB, SLURM, Backend, HostRequest, WaitingTuner, make_provider
from oppa.problem.allocation import read_netlab
from oppa.problem.cluster import Cluster
from oppa.problem.training import LauncherChoice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The user's choice of where trials run."""

    launcher: str = AUTO
    parallel: int | None = None
    """Number of parallel trials; None for as many as there are hosts for."""
    options: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    """Options of the launcher."""

    @classmethod
    def of(cls, choice: LauncherChoice, *, launcher: str = AUTO, parallel: int | None = None) -> Self:
        """Return the request of a job file.

        Args:
            choice: The job file's [launcher].
            launcher: Launcher that replaces the job file's, whose options then do not apply; `auto` keeps it.
            parallel: Number of parallel trials that replaces the job file's.
        """
        other = launcher != AUTO and choice.name not in (AUTO, launcher)
        options = {} if other else choice.options
        parallel = parallel or (None if other else choice.parallel)
        return cls(launcher=choice.name if launcher == AUTO else launcher, parallel=parallel, options=options)

    def resolve(self, cluster: Cluster) -> "LaunchRequest":
        """Return the request with a definite launcher. A request that can never be granted is refused at once.

        Raises:
            InputError: the launcher is unknown, or does not take one of the options.
            EnvironmentLackingError: the environment lacks something that the job needs.
        """
        settled = dataclasses.replace(self, launcher=_usual(cluster) if self.launcher == AUTO else self.launcher)
        provider = make_provider(settled.launcher)
        require_options(self.options, provider.options, owner=f"the launcher `{settled.launcher}`")
        provider.require(settled.hosts(cluster))
        return settled

    def hosts(self, cluster: Cluster) -> HostRequest:
        """Return the request as the launcher gets it."""
        return HostRequest(cluster=cluster, options=self.options, parallel=self.parallel)


def open_backend(
    request: LaunchRequest, cluster: Cluster, folder: Path, *, name: str, grace_s: float, on_tick: Callable[[], None]
) -> AbstractContextManager[Backend]:
    """Open the hosts of a resolved request, and yield them.

    Args:
        folder: Folder of the study, on a file system that all hosts share.
        name: Name of the job, for messages.
        on_tick: Called while hosts are waited for; its exceptions are passed on.

    Raises:
        EnvironmentLackingError: the hosts are gone, or can never be granted.
    """
    tuner = WaitingTuner(folder=folder, name=name, grace_s=grace_s, on_tick=on_tick)
    return make_provider(request.launcher).open(request.hosts(cluster), tuner)


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
