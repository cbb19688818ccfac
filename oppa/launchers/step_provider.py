"""Implement the launcher `srun`: the user's launch line starts a step of its own on all hosts of the allocation that oppa runs in.

Each trial is one step. srun passes the request to end on to all tasks of its step.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator

from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm
from oppa.launchers.provider import Backend, HostRequest, WaitingTuner, require_one_trial


@dataclasses.dataclass(frozen=True, slots=True)
class OwnJob:
    """Holds the hosts of the job that oppa runs in."""

    job: str

    def wait(self, on_tick: Callable[[], None]) -> None:
        """Wait until the job runs; raises EnvironmentLackingError if it has ended."""
        slurm.wait_until_running(self.job, on_tick)

    def revoked(self) -> str:
        """Return why the job does not run; empty while it does."""
        return slurm.revoked(self.job)


class StepProvider:
    """Provides the hosts of an allocation to a launch line that begins with srun; the launcher `srun`."""

    options = ()

    def require(self, request: HostRequest) -> None:
        """Refuse parallel trials, a machine without an allocation, and an allocation that is too small."""
        require_one_trial(request)
        job, hosts = slurm.own_job(), request.cluster.hosts
        if not job or shutil.which("srun") is None:
            hint = f"start oppa in one: `salloc --nodes={hosts} ...`, then the same command"
            raise EnvironmentLackingError(
                f"the launch line starts a step on {hosts} hosts, and oppa runs in no allocation of Slurm", hint=hint
            )
        slurm.require_fitting(request.cluster, slurm.nodes(job), job)

    @contextlib.contextmanager
    def open(self, request: HostRequest, tuner: WaitingTuner) -> Iterator[Backend]:
        """Yield this host, on which srun is started."""
        job = slurm.own_job()
        allocated = slurm.nodes(job)
        names = tuple(node.name for node in allocated) if len(allocated) == request.cluster.hosts else ()
        yield Backend(started_on=lambda: names, allocation=OwnJob(job))  # in a larger allocation srun chooses among the hosts
