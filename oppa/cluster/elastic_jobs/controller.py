"""Control the scale of elastic jobs: a loop reads the state, decides, and acts (FlexTrain, section 5).

All state is on disk. The controller writes the desired hosts of each job before it acts. It stops a run through a file, and detects
the process that trains a job by a lock. It may therefore be killed at any time, and another controller continues.

A change of size is a checkpoint and a restart. The user's own trainer goes on in the same process, which requests and returns hosts while
it trains. Other runs stop after a step, and their hosts return to the scheduler. They then start again on the desired number of hosts.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.cluster.elastic_jobs.arrival_log import ArrivalLog
from oppa.cluster.elastic_jobs.spool import DECISIONS, FRUITLESS, LOG, ElasticJob, folders
from oppa.cluster.elastic_jobs.status import Status, came_to_a_step, cost_of_start, status_of
from oppa.cluster.job import ScaleTable, TraceJob
from oppa.cluster.scaling import Running, ScaleDecision, Settings, giving, grow, reclaim
from oppa.cluster.scheduler import QueueSnapshot, Scheduler, Supervisor
from oppa.errors import EnvironmentLackingError, OppaError

LAUNCH_S = 30.0
PATIENCE_S = 10.0
"""Seconds that a job that scales up waits for hosts that were idle at the decision."""


class ClusterController:
    """The controller of one spool.

    Args:
        scheduler: Shares the nodes among elastic jobs and those of other users.
        tell: Receives a message for each decision and action.
        act: True to carry out decisions; False only reports them.
        launch_s: Seconds in which a supervisor that another controller launched must report its start.
    """

    def __init__(
        self,
        spool: Path,
        scheduler: Scheduler,
        settings: Settings,
        *,
        tell: Callable[[str], None] = lambda _: None,
        act: bool = True,
        launch_s: float = LAUNCH_S,
    ) -> None:
        folders(spool)
        self._spool, self._scheduler, self._settings, self._tell, self._act = spool, scheduler, settings, tell, act
        self._launch_s = launch_s
        self._arrival_log = ArrivalLog(spool, settings.window_s, settings.counted_gpus, keep=act)
        self._answered = False
        self._reported: dict[str, str] = {}
        self._children: dict[str, Supervisor] = {}
        """Supervisors that this controller has launched, by name of the job."""
        self.damaged: list[str] = []
        """Names of the jobs that could not be read in the last step."""

    def step(self) -> list[Status]:
        """Run one iteration: read the state, decide and act; return the status of each job as it was read."""
        for child in self._children.values():
            child.poll()
        found = self._found()
        try:
            view = self._scheduler.snapshot()
        except EnvironmentLackingError as error:
            if not self._answered:  # the scheduler has never answered
                raise
            self._say(f"no decision: {error.message}")
            return found
        self._answered = True
        with self._going_on("the spool"):
            self._arrival_log.count(view)
        for status in found:
            with self._going_on(status.job.name):
                self._keep(status, view)
                self._shrink_ungranted(status, view)
            if status.training and not status.is_elastic:
                self._say(f"{status.job.name}: keeps its {status.hosts} hosts, as its trainer does not declare `elastic`", status.job.name)
        jobs = {status.job.name: status.job for status in found}
        for change in self._decide(found, view):
            with self._going_on(change.job.name):
                self._carry_out(change, jobs[change.job.name])
        return found

    @contextlib.contextmanager
    def _going_on(self, about: str) -> Iterator[None]:
        """Report an error and continue, so that a full disk or a damaged job does not end the controller. The next step tries again."""
        try:
            yield
        except (OppaError, OSError) as error:
            self._say(f"{about}: {error}", about)

    def _found(self) -> list[Status]:
        """Return the status of all readable jobs. Damaged jobs do not delay the others."""
        found, self.damaged = list[Status](), []
        for folder in folders(self._spool):
            try:
                found.append(status_of(ElasticJob.read(folder)))
            except (OppaError, OSError) as error:
                self.damaged.append(folder.name)
                self._say(f"{folder.name}: {error}", folder.name)
        return found

    def _keep(self, status: Status, view: QueueSnapshot) -> None:
        """Start a job that should be trained, and stop one that is cancelled or on another number of hosts than desired."""
        job = status.job
        if job.cancelled():
            if self._act and status.hosts:
                job.ask_to_stop()
        elif status.hosts and status.hosts != status.desired:
            if self._act:
                self._resize(status)
        # the ending is read after the lock: the process may have ended since the status was read
        elif not job.supervised() and not self._launching(job) and not status_of(job).ending:
            self._start(job, view)

    def _resize(self, status: Status) -> None:
        """Request the desired number of hosts, unless that was done; keep the present number if the job has refused it."""
        job, request, present = status.job, status.job.requested_size(), status.job.present_size()
        if request is None or request.hosts != status.desired:
            job.ask_for(status.desired)
        elif present is not None and present.refused == request.id:
            self._say(f"{job.name}: stays on {status.hosts} hosts: {present.cause}", job.name)
            self._stay(status, fails=not present.excused)

    def _stay(self, status: Status, *, fails: bool) -> None:
        """Give up a change of hosts; if it fails, that counts as a failed start on the desired number."""
        job, desired = status.job, status.job.desired()
        failed = {desired.hosts: desired.failed_starts.get(desired.hosts, 0) + 1} if fails else {}
        job.set_desired(hosts=status.hosts, failed_starts={**desired.failed_starts, **failed})
        job.ask_for(status.hosts)

    def _launching(self, job: ElasticJob) -> bool:
        """Return True while a launch, perhaps by another controller, has not begun, ended or timed out."""
        if (child := self._children.get(job.name)) is not None:
            return child.poll() is None
        return job.begun() is None and 0 <= time.time() - job.desired().launched_at < self._launch_s

    def _start(self, job: ElasticJob, view: QueueSnapshot) -> None:
        try:
            job.require_unchanged_table()
        except OppaError as error:
            self._say(f"{job.name}: {error.message}", job.name)
            return
        if not self._act:
            self._say(f"{job.name}: would be started on {job.desired().hosts} hosts", job.name)
            return
        self._learn(job)
        desired = job.desired()
        hosts = desired.hosts
        if desired.keeps_failing(hosts):
            self._say(f"{job.name}: given up, as {FRUITLESS} starts took no step; `{job.folder / LOG}` has the reason", job.name)
            return
        for left in view.of(job.token):  # a supervisor that was killed has not returned them
            self._scheduler.cancel(left)
        self._say(f"{job.name}: started on {hosts} hosts", job.name)
        job.set_desired(launches=desired.launches + 1, launched_at=time.time())
        self._children[job.name] = self._scheduler.start(job, hosts)

    def _learn(self, job: ElasticJob) -> None:
        """Record the result of the last launch, which has ended.

        A launch that took a step resets the failed starts on its number of hosts, and updates the cost of a start. A launch without a
        step counts as a failed start, unless its hosts were revoked or it was excused. After a failed scale-up the job returns to its
        requested hosts.
        """
        begun, desired = job.begun(), job.desired()
        if begun is None and not desired.launches:
            return
        hosts = begun.hosts if begun else desired.hosts
        if begun and came_to_a_step(job):
            self._succeeded(job, hosts)
        elif not begun or not (begun.excused or job.ending() == "revoked"):
            job.set_desired(failed_starts={**desired.failed_starts, hosts: desired.failed_starts.get(hosts, 0) + 1})
            if desired.hosts == hosts != job.hosts:
                self._say(f"{job.name}: back to {job.hosts} hosts, as a start on {hosts} took no step", job.name)
                job.set_desired(hosts=job.hosts)

    def _succeeded(self, job: ElasticJob, hosts: int) -> None:
        """Record that a start on a number of hosts took a step, and its cost."""
        failed_starts = {size: starts for size, starts in job.desired().failed_starts.items() if size != hosts}
        job.set_desired(failed_starts=failed_starts, start_s=cost_of_start(job))

    def _shrink_ungranted(self, status: Status, view: QueueSnapshot) -> None:
        """Shrink a scale-up whose hosts the scheduler cannot grant: other jobs took them, they failed, or a limit applies.

        The job then gets the fastest size that idle hosts allow, at least its requested one. The request of a cancelled job is cancelled.
        """
        job, held, start = status.job, view.pending(status.job.token), status.job.start()
        if held is None or start is None:
            return
        if job.cancelled():
            if self._act:
                self._scheduler.cancel(held)
            return
        is_available = held.for_nodes and held.nodes <= view.idle
        if 0 < status.hosts < status.desired:  # it trains while it waits
            request = job.requested_size()
            if not is_available and request is not None and time.time() - request.at >= PATIENCE_S:
                why = f"the scheduler reports `{held.reason}`" if held.limited else "hosts are no longer available"
                self._say(f"{job.name}: stays on {status.hosts} hosts, as {why}", job.name)
                if self._act:
                    self._stay(status, fails=held.limited)
            return
        if start.hosts <= job.hosts or is_available or time.time() - start.at < PATIENCE_S:
            return
        available = view.idle + view.holding(job.token)
        left = job.table.fastest(min(available, start.hosts - 1)) if not held.limited else None
        hosts = max(job.hosts, left.gpus if left else 0)
        why = f"the scheduler reports `{held.reason}`" if held.limited else "they are no longer available"
        self._say(f"{job.name}: back from {start.hosts} to {hosts} hosts, as {why}", job.name)
        if self._act:
            if not held.limited:
                job.excuse()
            job.set_desired(hosts=hosts)
            self._scheduler.cancel(held)

    def _decide(self, found: Sequence[Status], view: QueueSnapshot) -> list[ScaleDecision]:
        """Return reclaim decisions for the first waiting job, or else a scale-up; none while a job is changing its size."""
        running = [_running(status) for status in found if status.settled]
        if view.waiting:
            if any(status.changing for status in found):
                return []
            return reclaim(running, giving(view.waiting[0].nodes - view.idle), unit=self._settings.unit)
        if any(status.hosts and not status.settled and not _barred(status, view) for status in found):
            return []
        change = grow(running, view.idle, self._arrival_log.rate(), self._settings)
        return [change] if change else []

    def _carry_out(self, change: ScaleDecision, job: ElasticJob) -> None:
        self._say(f"{job.name}: from {change.before} to {change.after} hosts, as {change.reason}", job.name)
        if not self._act:
            return
        facts = {"time": time.time(), "job": job.name, "before": change.before, "after": change.after, "reason": change.reason}
        with (self._spool / DECISIONS).open("a") as log:
            log.write(json.dumps({**facts, "speedup": change.speedup, "probability": change.probability}) + "\n")
        self._succeeded(job, change.before)
        job.set_desired(hosts=change.after)
        job.ask_for(change.after)

    def _say(self, what: str, about: str = "") -> None:
        if self._reported.get(about) != what:
            self._tell(what)
            self._reported[about] = what


def _barred(status: Status, view: QueueSnapshot) -> bool:
    """Return True if the job waits for something other than nodes."""
    held = view.pending(status.job.token)
    return held is not None and not held.for_nodes


def _running(status: Status) -> Running:
    """Return a job as input for the decisions, in hosts, without sizes that failed to start too often or that its trainer excludes."""
    job, desired = status.job, status.job.desired()
    kept = (status.hosts, job.hosts)

    def may_be(hosts: int) -> bool:
        return hosts in kept or (status.is_elastic and not desired.keeps_failing(hosts))

    table = ScaleTable(tuple(size for size in job.table.sizes if may_be(size.gpus)))
    known = TraceJob(name=job.name, arrival_s=0.0, duration_s=0.0, gpus=job.hosts, table=table, start_s=status.start_s)
    return Running(known, status.hosts, left_s=status.left_s)
