"""Define what the cluster controller requires of a scheduler: its queue, and the start and cancellation of elastic jobs.

`slurm` is built in. An installed package adds a scheduler by an entry point of the group `oppa.schedulers`. The entry point names a class
that implements `Scheduler` and is called with its options: `Class({"partition": "gpu"})`. The attribute `options` has their names.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Protocol, runtime_checkable

from oppa import extensions
from oppa.cluster.elastic_jobs.spool import ElasticJob
from oppa.errors import require_known
from oppa.extensions import OptionValue

GROUP = "oppa.schedulers"
SLURM = "slurm"
BUILT_IN = (EntryPoint(SLURM, "oppa.cluster.slurm.scheduler:SlurmScheduler", GROUP),)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """Describes a job in a scheduler's queue."""

    id: str
    nodes: int
    pending: bool
    """True if it waits, False if it holds nodes."""
    completing: bool = False
    """True if it has ended, and its nodes will be idle soon."""
    reason: str = ""
    """Reason why it waits, as the scheduler reports it."""
    for_nodes: bool = False
    """True if it waits, and could start with more idle nodes."""
    limited: bool = False
    """True if it waits because of a limit, which idle nodes do not resolve."""
    elastic: str = ""
    """Token of the elastic job whose hosts it holds or requests; empty for other jobs."""
    array: str = ""
    """Id of the job array that it belongs to; empty without one."""

    @property
    def submission(self) -> str:
        """Return the id of the job, or of the job array that it belongs to."""
        return self.array or self.id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """Holds the idle nodes and queued jobs at one moment."""

    idle: int
    """Number of idle nodes."""
    jobs: Sequence[QueuedJob] = ()
    """Jobs in the order in which the scheduler would start them."""

    @property
    def waiting(self) -> list[QueuedJob]:
        """Return the jobs that could start if more nodes were idle."""
        return [job for job in self.jobs if job.for_nodes]

    def pending(self, token: str) -> QueuedJob | None:
        """Return the pending job that requests hosts for this elastic job, if any."""
        return next((job for job in self.of(token) if job.pending), None)

    def holding(self, token: str) -> int:
        """Return the number of nodes that this elastic job holds."""
        return sum(job.nodes for job in self.of(token) if not job.pending and not job.completing)

    def of(self, token: str) -> list[QueuedJob]:
        """Return the jobs that hold or request hosts for this elastic job."""
        return [job for job in self.jobs if job.elastic == token]

    def others(self, known: Collection[str]) -> list[QueuedJob]:
        """Return one job of each submission outside `known`; jobs that hold or request hosts for an elastic job are left out."""
        found = {job.submission: job for job in self.jobs if not job.elastic and job.submission not in known}
        return list(found.values())


class Supervisor(Protocol):
    """Runs the process that trains an elastic job, or waits for the hosts to do so."""

    def poll(self) -> int | None:
        """Return the exit code of the process, or None while it runs; never block."""


class Scheduler(Protocol):
    """Shares the nodes of a cluster among jobs of many users."""

    def snapshot(self) -> QueueSnapshot:
        """Return the idle nodes and the queue; raises EnvironmentLackingError if the scheduler does not answer."""

    def start(self, job: ElasticJob, hosts: int) -> Supervisor:
        """Start the process that requests this number of hosts, and trains the job on them; `start_supervisor` helps with it."""

    def cancel(self, request: QueuedJob) -> None:
        """Withdraw a request for hosts, also if it was granted; do nothing if it no longer exists."""


@runtime_checkable
class ForecastingScheduler(Scheduler, Protocol):
    """Predicts whether it would grant hosts; the controller asks it before each scale-up."""

    def unavailable(self, job: ElasticJob, hosts: int) -> str:
        """Return why this number of further hosts would not be granted to the job now; empty if it would be."""


def make_scheduler(name: str, options: Mapping[str, OptionValue]) -> Scheduler:
    """Return the scheduler of that name.

    Raises:
        InputError: no scheduler has that name, its entry point does not name a scheduler, or it does not accept one of the options.
        EnvironmentLackingError: it imports a package that is not installed.
    """
    found = extensions.parts(GROUP, BUILT_IN)
    require_known(name, found, f"`{name}` is not a scheduler")
    kind = extensions.load_class(found[name].value, kind="scheduler", protocol=Scheduler)
    extensions.require_options(options, getattr(kind, "options", ()), owner=f"the scheduler `{name}`")
    scheduler: Scheduler = kind(options)
    return scheduler
