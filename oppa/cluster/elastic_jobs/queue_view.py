"""Combine the queue with the elastic jobs of a spool: who waits, which nodes come free, and which jobs can change their size."""

from collections.abc import Callable, Collection, Sequence

from oppa.cluster.elastic_jobs.status import Status
from oppa.cluster.job import ScaleTable, TraceJob
from oppa.cluster.scaling import Running
from oppa.cluster.scheduler import QueuedJob, QueueSnapshot

CHANGE_S = 600.0
"""Seconds after which nobody waits any longer for nodes of a job that changes or ends."""


class Patience:
    """Finds the names that are reported without a break for longer than CHANGE_S.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def overdue(self, names: Collection[str]) -> set[str]:
        """Return the names that every call has reported for at least CHANGE_S; a name that a call leaves out begins anew."""
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in names}
        return {name for name, since in self._since.items() if now - since >= CHANGE_S}


def waiting_for_nodes(found: Sequence[Status], view: QueueSnapshot) -> list[QueuedJob]:
    """Return the jobs that wait for nodes, in order; an elastic job of this spool may claim its requested number alone."""
    jobs = {status.job.token: status.job for status in found}

    def may_claim(request: QueuedJob) -> bool:
        job = jobs.get(request.elastic)
        return job is None or (not job.cancelled() and max(request.nodes, job.desired().hosts) <= job.hosts)

    return [request for request in view.waiting if may_claim(request)]


def coming_free(found: Sequence[Status], view: QueueSnapshot, overdue: Collection[str]) -> int:
    """Return the number of nodes that are not idle yet, but are being returned.

    Args:
        overdue: Names of elastic jobs, and ids of the scheduler's jobs, that have been returning nodes for too long to count.
    """
    ending = sum(job.nodes for job in view.jobs if job.completing and job.id not in overdue)
    return ending + sum(_returning(status, view) for status in found if status.job.name not in overdue)


def _returning(status: Status, view: QueueSnapshot) -> int:
    """Return the number of hosts that a job holds in excess of those that it is to have."""
    job = status.job
    target = 0 if status.ending or job.cancelled() else job.desired().hosts
    return max(0, max(status.hosts, view.holding(job.token)) - target)


def is_barred(status: Status, view: QueueSnapshot) -> bool:
    """Return True if the job waits for something other than nodes."""
    held = view.pending(status.job.token)
    return held is not None and not held.for_nodes


def running(status: Status, now: float) -> Running:
    """Return a job as input for the decisions, in hosts.

    Sizes are left out that failed to start too often, that the scheduler has refused a short time ago, or that its trainer excludes.

    Args:
        now: Unix time.
    """
    job, desired = status.job, status.job.desired()
    kept = (status.hosts, job.hosts)

    def may_be(hosts: int) -> bool:
        if hosts in kept:
            return True
        is_refused = hosts > status.hosts and desired.delay_s(hosts, now) > 0
        return status.is_elastic and not is_refused and not desired.keeps_failing(hosts)

    table = ScaleTable(tuple(size for size in job.table.sizes if may_be(size.gpus)))
    known = TraceJob(name=job.name, arrival_s=0.0, duration_s=0.0, gpus=job.hosts, table=table, start_s=status.start_s)
    return Running(known, status.hosts, left_s=status.left_s)
