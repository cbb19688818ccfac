"""Resolve where trials run: on this host, in a Slurm allocation, in a Slurm job that oppa requests, or on another launcher's hosts."""

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
from oppa.problem.launch_line.batch_header import BINDING
from oppa.problem.training import LauncherChoice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """Holds the user's choice of where trials run."""

    launcher: str = AUTO
    parallel: int | None = None
    """Number of parallel trials; None for as many as the hosts allow."""
    options: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    """Options of the launcher."""

    @classmethod
    def of(cls, choice: LauncherChoice, *, launcher: str = AUTO, parallel: int | None = None) -> Self:
        """Return the request that a job file makes.

        Args:
            choice: The job file's [launcher].
            launcher: Replaces the job file's launcher, whose options then do not apply; `auto` keeps it.
            parallel: Replaces the job file's number of parallel trials.
        """
        other = launcher != AUTO and choice.name not in (AUTO, launcher)
        options = {} if other else choice.options
        parallel = parallel or (None if other else choice.parallel)
        return cls(launcher=choice.name if launcher == AUTO else launcher, parallel=parallel, options=options)

    def resolve(self, cluster: Cluster) -> Self:
        """Return the request with a definite launcher. A request that can never be granted is refused at once.

        If oppa chooses a launcher without steps of Slurm, the options that bind them are dropped.

        Raises:
            InputError: the launcher is unknown, or does not accept one of the options.
            EnvironmentLackingError: the environment lacks something that the job needs.
        """
        settled = self._chosen(cluster) if self.launcher == AUTO else self
        provider = make_provider(settled.launcher)
        require_options(settled.options, provider.options, owner=f"the launcher `{settled.launcher}`")
        provider.require(settled.hosts(cluster))
        return settled

    def _chosen(self, cluster: Cluster) -> Self:
        """Return the request with the launcher that `auto` stands for."""
        launcher = _usual(cluster)
        unbound = {name: value for name, value in self.options.items() if name not in BINDING}
        return dataclasses.replace(self, launcher=launcher, options=self.options if launcher == SLURM else unbound)

    def hosts(self, cluster: Cluster) -> HostRequest:
        """Return the request in the form that launchers receive."""
        return HostRequest(cluster=cluster, options=self.options, parallel=self.parallel)


def open_backend(
    request: LaunchRequest, cluster: Cluster, folder: Path, *, name: str, grace_s: float, on_tick: Callable[[], None]
) -> AbstractContextManager[Backend]:
    """Open the hosts of a resolved request, and yield them.

    Args:
        folder: Folder of the study, on a file system that all hosts share.
        name: Name of the job, for messages.
        on_tick: Called while the tuner waits for hosts; its exceptions propagate.

    Raises:
        EnvironmentLackingError: the hosts were lost, or can never be granted.
    """
    tuner = WaitingTuner(folder=folder, name=name, grace_s=grace_s, on_tick=on_tick)
    return make_provider(request.launcher).open(request.hosts(cluster), tuner)


def _usual(cluster: Cluster) -> str:
    """Return the launcher for `auto`: the emulated hosts or the Slurm allocation that this process runs in, else this host."""
    if read_netlab():
        return NETLAB
    if slurm.own_job():
        return SLURM
    if cluster.hosts > 1:
        hint = f"start it inside an allocation (`salloc --nodes={cluster.hosts}`), or let oppa request one: `--set launcher.name=slurm`"
        raise EnvironmentLackingError(f"this job needs {cluster.hosts} hosts, and only this one is available", hint=hint)
    return LOCAL
