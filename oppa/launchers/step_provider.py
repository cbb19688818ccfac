"""Implement the launcher `srun`: the user's launch line starts a step of its own on all hosts of the allocation that oppa runs in.

Each trial is one step. srun passes the request to end on to all tasks of its step.
"""

import contextlib
import shutil
from collections.abc import Iterator

from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm
from oppa.launchers.provider import Backend, HostRequest, WaitingTuner, require_one_trial


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
        allocated = slurm.nodes(slurm.own_job())
        names = tuple(node.name for node in allocated) if len(allocated) == request.cluster.hosts else ()
        yield Backend(started_on=lambda: names)  # in a larger allocation srun chooses among the hosts
