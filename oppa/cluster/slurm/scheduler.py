"""Implement the scheduler `slurm`: its queue from `squeue` and `sinfo`, and hosts from jobs that the launcher `slurm` requests."""

import dataclasses
import logging
from collections.abc import Mapping

from oppa.cluster.elastic_jobs.spool import JOB, ElasticJob
from oppa.cluster.elastic_jobs.supervisor import start_supervisor
from oppa.cluster.scheduler import QueuedJob, QueueSnapshot, Supervisor
from oppa.cluster.slurm.queue_snapshot import OWN, shows_all_jobs, take_snapshot
from oppa.extensions import OptionValue
from oppa.launchers.slurm import ask
from oppa.launchers.slurm_job import expected_delay
from oppa.launchers.slurm_provider import OPTIONS, sbatch_words
from oppa.problem.declaration import spell
from oppa.problem.job import load_job

_log = logging.getLogger(__name__)


class SlurmScheduler:
    """Implements the scheduler `slurm`.

    Args:
        options: Options of sbatch for the jobs that hold hosts; `partition` also selects the nodes and the queue that count. Nodes
            of `exclude` do not count as idle.
    """

    options = OPTIONS

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._options = options
        self._has_checked = False

    def snapshot(self) -> QueueSnapshot:
        """Return the idle nodes of the partition, or of the default one, without those that `exclude` names, and the queue for them."""
        if not self._has_checked:
            if not shows_all_jobs():
                _log.warning("Slurm hides the jobs of other users (`PrivateData`): oppa returns no nodes for those that wait")
            self._has_checked = True
        return take_snapshot(str(self._options.get("partition", "")), without=str(self._options.get("exclude", "")))

    def start(self, job: ElasticJob, hosts: int) -> Supervisor:
        """Start a supervisor, which requests the hosts by a job whose comment has the token of the elastic job."""
        return start_supervisor(job, hosts, self.settings(job))

    def settings(self, job: ElasticJob) -> list[str]:
        """Return the keys of the job file that request hosts for this job."""
        options = {**self._options, "comment": f"{OWN}{job.token}"}
        return ["launcher.name=slurm", *(f"launcher.options.{name}={spell(value)}" for name, value in options.items())]

    def unavailable(self, job: ElasticJob, hosts: int) -> str:
        """Return why Slurm would not grant so many further hosts to this job now (`sbatch --test-only`); empty if it would."""
        settings = [f"cluster.hosts={job.hosts}", *self.settings(job)]
        problem = load_job(job.folder / JOB, settings=settings, argv=job.command)
        cluster = dataclasses.replace(problem.cluster, hosts=hosts)
        return expected_delay(cluster, sbatch_words(problem.launcher.options))

    def cancel(self, request: QueuedJob) -> None:
        """Cancel the job that requests hosts."""
        ask("scancel", request.id, lenient=True)
