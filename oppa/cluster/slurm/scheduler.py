"""Implement the scheduler `slurm`: its queue from `squeue` and `sinfo`, and hosts from jobs that the launcher `slurm` requests."""

from collections.abc import Mapping

from oppa.cluster.elastic_jobs.spool import ElasticJob
from oppa.cluster.elastic_jobs.supervisor import start_supervisor
from oppa.cluster.scheduler import QueuedJob, QueueSnapshot, Supervisor
from oppa.cluster.slurm.queue_snapshot import OWN, take_snapshot
from oppa.extensions import OptionValue
from oppa.launchers.slurm import ask
from oppa.launchers.slurm_provider import OPTIONS
from oppa.problem.declaration import spell


class SlurmScheduler:
    """The scheduler `slurm`.

    Args:
        options: Options of sbatch for the jobs that hold hosts; `partition` also selects the nodes and the queue that count. Nodes
            of `exclude` do not count as idle.
    """

    options = OPTIONS

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._options = options

    def snapshot(self) -> QueueSnapshot:
        """Return the idle nodes and the queue of the partition, or of all partitions, without the nodes that `exclude` names."""
        return take_snapshot(str(self._options.get("partition", "")), without=str(self._options.get("exclude", "")))

    def start(self, job: ElasticJob, hosts: int) -> Supervisor:
        """Start a supervisor, which requests the hosts by a job whose comment has the token of the elastic job."""
        return start_supervisor(job, hosts, self.settings(job))

    def settings(self, job: ElasticJob) -> list[str]:
        """Return the keys of the job file that request hosts for this job."""
        options = {**self._options, "comment": f"{OWN}{job.token}"}
        return ["launcher.name=slurm", *(f"launcher.options.{name}={spell(value)}" for name, value in options.items())]

    def cancel(self, request: QueuedJob) -> None:
        """Cancel the job that requests hosts."""
        ask("scancel", request.id, lenient=True)
