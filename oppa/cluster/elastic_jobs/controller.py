"""Control the scale of elastic jobs: a loop reads the state, decides, and acts (FlexTrain, section 5).

All state is on disk. The controller writes the desired hosts of each job before it acts. It stops a run through a file, and detects
the process that trains a job by a lock. It may therefore be killed at any time, and another controller continues.

A change of size is a checkpoint and a restart. The user's own trainer goes on in the same process, which requests and returns hosts while
it trains. Other runs stop after a step, and their hosts return to the scheduler. They then start again on the desired number of hosts.
"""

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.cluster.elastic_jobs.arrival_log import ArrivalLog
from oppa.cluster.elastic_jobs.desired_state import FRUITLESS
from oppa.cluster.elastic_jobs.queue_view import CHANGE_S, Patience, coming_free, is_barred, running, waiting_for_nodes
from oppa.cluster.elastic_jobs.spool import DECISIONS, LOG, ElasticJob, folders
from oppa.cluster.elastic_jobs.status import Status, came_to_a_step, last_start_cost, status_of
from oppa.cluster.scaling import ScaleDecision, Settings, giving, grow, reclaim
from oppa.cluster.scheduler import ForecastingScheduler, QueuedJob, QueueSnapshot, Scheduler, Supervisor
from oppa.errors import EnvironmentLackingError, OppaError
from oppa.units import with_noun

LAUNCH_S = 30.0
PATIENCE_S = 10.0
"""Seconds that a job that scales up waits for hosts that are not idle."""
WAIT_S = 0.1
"""Seconds between two checks for a request to stop."""
GRANT_S = 300.0
"""Seconds that it waits for hosts that seem idle; perhaps the scheduler does not give them to this job."""
UNREADABLE_STEPS = 10
"""Consecutive steps in which a spool or a job must be unreadable before that is its final state."""
LACKING = 3
"""Exit code of a supervisor that was granted no hosts (`oppa train`: environment lacking)."""


class ClusterController:
    """Controls the elastic jobs of one spool.

    Args:
        scheduler: Shares the nodes among elastic jobs and those of other users.
        tell: Receives a message for each decision and action.
        act: True to carry out decisions; False only reports them.
        launch_s: Seconds in which a supervisor that another controller launched must report its start.
        clock: Monotonic time in seconds.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        folders(spool)
        self._spool, self._scheduler, self._settings, self._tell, self._act = spool, scheduler, settings, tell, act
        self._launch_s = launch_s
        self._arrival_log = ArrivalLog(spool, settings.window_s, settings.counted_gpus, keep=act, clock=clock)
        self._answered, self._patience, self._unreadable = False, Patience(clock), 0
        self._reported: dict[str, str] = {}
        self._children: dict[str, Supervisor] = {}
        """Supervisors that this controller has launched, by name of the job."""
        self._open = set[str]()
        """Names of the jobs that had not ended in the last step."""
        self.damaged: list[str] = []
        """Names of the jobs that could not be read in the last step; the spool's own if it could not be read."""

    def has_ended(self, found: Sequence[Status]) -> bool:
        """Return True if nothing is left to do for these jobs of the last step: all have ended, or stay unreadable."""
        return all(status.ending for status in found) and (not self.damaged or self._unreadable >= UNREADABLE_STEPS)

    def run(self, check: Callable[[], None], *, every_s: float, once: bool = False) -> list[Status]:
        """Take steps until nothing is left to do, and return the status of each job in the last one.

        Args:
            check: Is called many times between two steps; what it raises ends the loop, and jobs continue.
            every_s: Seconds between two steps.
            once: Take one step.
        """
        while not self.has_ended(found := self.step()) and not once:
            until = time.monotonic() + every_s
            while time.monotonic() < until:
                check()
                time.sleep(WAIT_S)
        return found

    def step(self) -> list[Status]:
        """Run one iteration: read the state, decide and act; return the status of each job as it was read."""
        for child in self._children.values():
            child.poll()
        found = self._found()
        for status in found:
            self._report_ending(status)
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
        has_withdrawn = False
        for status in found:
            with self._going_on(status.job.name):
                self._keep(status, view)
                has_withdrawn |= self._shrink_ungranted(status, view)
            if status.training and not status.is_elastic:
                kept = with_noun(status.hosts, "host")
                self._say(f"{status.job.name}: keeps its {kept}, as its trainer does not declare `elastic`", status.job.name)
        jobs = {status.job.name: status.job for status in found}
        # a withdrawn request is still in the queue that was read; the next step decides
        for change in self._decide(found, view) if not has_withdrawn else ():
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
        for folder in self._folders():
            try:
                found.append(status_of(ElasticJob.read(folder)))
            except (OppaError, OSError) as error:
                self.damaged.append(folder.name)
                self._say(f"{folder.name}: {error}", folder.name)
        self._unreadable = self._unreadable + 1 if self.damaged else 0
        return found

    def _report_ending(self, status: Status) -> None:
        """Report that a job has ended since the last step."""
        name = status.job.name
        if not status.ending:
            self._open.add(name)
        elif name in self._open:
            self._open.remove(name)
            why = f"; `{status.job.folder / LOG}` has the reason" if status.ending == "failed" else ""
            self._say(f"{name}: {status.ending}, after {with_noun(status.steps, 'step')}{why}", name)

    def _folders(self) -> Sequence[Path]:
        """Return the folders of all jobs; none if the spool is away for a moment, as on a network file system."""
        try:
            return folders(self._spool)
        except (OppaError, OSError) as error:
            self.damaged.append(self._spool.name)
            self._say(f"the spool: {error}", "the spool")
            return []

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
            self._say(f"{job.name}: stays on {with_noun(status.hosts, 'host')}: {present.cause}", job.name)
            if not present.excused:
                self._fail(job, status.desired)
            elif status.desired > job.hosts:
                self._refuse(job, status.desired, present.cause)
            self._stay(status)

    def _stay(self, status: Status) -> None:
        """Give up a change of hosts."""
        status.job.set_desired(hosts=status.hosts)
        status.job.ask_for(status.hosts)

    def _launching(self, job: ElasticJob) -> bool:
        """Return True while a launch, perhaps by another controller, has not begun, ended or timed out."""
        if (child := self._children.get(job.name)) is not None:
            return child.poll() is None
        return job.begun() is None and self._was_launched(job)

    def _was_launched(self, job: ElasticJob) -> bool:
        """Return True while a supervisor that was launched may still report its start."""
        return 0 <= time.time() - job.desired().launched_at < self._launch_s

    def _start(self, job: ElasticJob, view: QueueSnapshot) -> None:
        try:
            job.require_unchanged_table()
        except OppaError as error:
            self._say(f"{job.name}: {error.message}", job.name)
            return
        if not self._act:
            self._say(f"{job.name}: would be started on {with_noun(job.desired().hosts, 'host')}", job.name)
            return
        self._learn(job)
        desired = job.desired()
        hosts = desired.hosts
        if desired.keeps_failing(hosts):
            self._say(f"{job.name}: given up, as {FRUITLESS} starts took no step; `{job.folder / LOG}` has the reason", job.name)
            return
        if (delay_s := desired.delay_s(hosts, time.time())) > 0:
            why = f"a request for {with_noun(hosts, 'host')} was not granted; `{job.folder / LOG}` has the reason"
            self._say(f"{job.name}: {why}; the next try follows in {math.ceil(delay_s / 60)} min", f"{job.name}: delay")
            return
        for left in view.of(job.token):  # a supervisor that was killed has not returned them
            self._scheduler.cancel(left)
        self._say(f"{job.name}: started on {with_noun(hosts, 'host')}", job.name)
        job.set_desired(launches=desired.launches + 1, launched_at=time.time())
        self._children[job.name] = self._scheduler.start(job, hosts)

    def _learn(self, job: ElasticJob) -> None:
        """Record the result of the last launch, which has ended, once.

        A launch that took a step resets the failed starts on its number of hosts, and updates the cost of a start. A launch without a
        step counts as a failed start, unless its hosts were revoked or never granted, or it was excused. After a failed scale-up the job
        returns to its requested hosts.
        """
        begun, desired = job.begun(), job.desired()
        if desired.learned == desired.launches or (begun is None and not desired.launches):
            return
        hosts = begun.hosts if begun else desired.hosts
        if begun and came_to_a_step(job):
            self._succeeded(job, hosts)
        elif not begun or not (begun.excused or job.ending() == "revoked"):
            if self._was_granted(job):
                self._fail(job, hosts)
            else:
                self._refuse(job, hosts, "no hosts were granted")
            if desired.hosts == hosts != job.hosts:
                self._say(f"{job.name}: back to {with_noun(job.hosts, 'host')}, as a start on {hosts} took no step", job.name)
                job.set_desired(hosts=job.hosts)
        job.set_desired(learned=desired.launches)

    def _was_granted(self, job: ElasticJob) -> bool:
        """Return False if the last launch of this controller ended because it was granted no hosts."""
        child = self._children.get(job.name)
        return child is None or child.poll() != LACKING or job.ending() != ""

    def _succeeded(self, job: ElasticJob, hosts: int) -> None:
        """Record that a start on a number of hosts took a step, and its cost."""
        desired, cost = job.desired(), last_start_cost(job)
        failed_starts = {size: starts for size, starts in desired.failed_starts.items() if size != hosts}
        costs = desired.with_start(*cost) if cost is not None else {}
        job.set_desired(failed_starts=failed_starts, refusals=desired.granted(hosts), **costs)

    def _shrink_ungranted(self, status: Status, view: QueueSnapshot) -> bool:
        """Withdraw a request for more hosts than the job submitted that is not granted in time; return True if one was withdrawn.

        Other jobs took the hosts, they failed, the scheduler keeps them for something else, or a limit applies. The job then gets the
        fastest size that idle hosts allow, at least its requested one. The request of a cancelled job is cancelled.
        """
        job, held, start = status.job, view.pending(status.job.token), status.job.start()
        if held is None or start is None:
            return False
        if job.cancelled():
            if self._act:
                self._scheduler.cancel(held)
            return True
        request = job.requested_size() if 0 < status.hosts < status.desired else None  # it trains while it waits
        if request is None and start.hosts <= job.hosts:
            return False
        waited_s = _age_s(start.at if request is None else request.at)
        seems_free = held.for_nodes and held.nodes <= view.idle
        if waited_s < (GRANT_S if seems_free else PATIENCE_S):
            if waited_s >= PATIENCE_S:
                self._say(f"{job.name}: waits for {with_noun(held.nodes, 'host')}; the scheduler reports `{held.reason}`", job.name)
            return False
        self._withdraw(status, held, view, seems_free=seems_free)
        return True

    def _withdraw(self, status: Status, held: QueuedJob, view: QueueSnapshot, *, seems_free: bool) -> None:
        """Withdraw a request for more hosts, and put off the next one."""
        job, start = status.job, status.job.start()
        assert start is not None
        trains = 0 < status.hosts < status.desired
        are_taken = held.for_nodes and not seems_free
        why = "they are no longer available" if are_taken else f"the scheduler reports `{held.reason}`"
        before = status.desired if trains else start.hosts
        left = job.table.fastest(min(view.idle + view.holding(job.token), before - 1)) if are_taken else None
        hosts = status.hosts if trains else max(job.hosts, left.gpus if left else 0)
        change = f"stays on {with_noun(hosts, 'host')}" if trains else f"back from {before} to {with_noun(hosts, 'host')}"
        self._say(f"{job.name}: {change}, as {why}", job.name)
        if not self._act:
            return
        if held.limited:
            self._fail(job, before)
        else:  # if nodes seem free, the number of idle nodes is no guide to smaller sizes either
            self._refuse(job, before if are_taken else max(hosts, job.hosts) + 1, held.reason)
        if trains:
            self._stay(status)
            return
        job.excuse()
        job.set_desired(hosts=hosts)
        self._scheduler.cancel(held)

    @staticmethod
    def _fail(job: ElasticJob, hosts: int) -> None:
        """Count a failed start on a number of hosts."""
        failed = job.desired().failed_starts
        job.set_desired(failed_starts={**failed, hosts: failed.get(hosts, 0) + 1})

    def _refuse(self, job: ElasticJob, least: int, why: str) -> None:
        """Record that the scheduler does not grant this number of hosts or more now; the next request waits longer each time."""
        job.set_desired(refusals=job.desired().refused(least, why, time.time()))

    def _decide(self, found: Sequence[Status], view: QueueSnapshot) -> list[ScaleDecision]:
        """Return reclaim decisions for a waiting job, or else a scale-up; no scale-up while a job waits or is changing its size.

        Spare hosts go to the first waiting job that they let start, unless free and returning hosts suffice for an earlier one.
        """
        overdue = self._overdue(found, view)
        now = time.time()
        settled = [running(status, now) for status in found if status.settled and status.is_elastic]
        if waiting := waiting_for_nodes(found, view):
            free = view.idle + coming_free(found, view, overdue)
            lacking = itertools.takewhile(lambda nodes: nodes > 0, (job.nodes - free for job in waiting))
            changes = (reclaim(settled, giving(nodes), unit=self._settings.unit) for nodes in lacking)
            return next(filter(None, changes), [])
        if any(self._changes(status, view) for status in found if status.job.name not in overdue):
            return []
        change = grow(settled, view.idle, self._arrival_log.rate(), self._settings)
        return [change] if change and self._is_available(change, found) else []

    def _overdue(self, found: Sequence[Status], view: QueueSnapshot) -> set[str]:
        """Return the names of elastic jobs that change for too long, and the ids of jobs of the scheduler that end for too long."""
        unsettled = [status.job.name for status in found if status.hosts and not status.settled]
        overdue = self._patience.overdue([*unsettled, *(job.id for job in view.jobs if job.completing)])
        for status in found:
            if status.changing and status.job.name in overdue:
                minutes = CHANGE_S / 60
                self._say(f"{status.job.name}: has not changed its hosts in {minutes:.0f} min; others do not wait for it", status.job.name)
        return overdue

    def _changes(self, status: Status, view: QueueSnapshot) -> bool:
        """Return True while a job is being launched, starts, or changes its size, and does not wait for something other than nodes."""
        if status.hosts:
            return not status.settled and not is_barred(status, view)
        return not status.ending and self._was_launched(status.job)

    def _is_available(self, change: ScaleDecision, found: Sequence[Status]) -> bool:
        """Return True unless the scheduler predicts that it would not grant the hosts of a scale-up now."""
        if not isinstance(self._scheduler, ForecastingScheduler):
            return True
        job, more = next(status.job for status in found if status.job.name == change.job.name), change.after - change.before
        try:
            why = self._scheduler.unavailable(job, more)
        except OppaError as error:
            why = error.message
        if not why:
            return True
        kept = with_noun(change.before, "host")
        self._say(f"{job.name}: stays on {kept}, as a request for {more} more would not be granted now: {why}", job.name)
        if self._act:
            self._refuse(job, change.after, why)
        return False

    def _carry_out(self, change: ScaleDecision, job: ElasticJob) -> None:
        self._say(f"{job.name}: from {change.before} to {with_noun(change.after, 'host')}, as {change.reason}", job.name)
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


def _age_s(at: float) -> float:
    """Return the seconds since a Unix time; infinite if it is to come, as the clock has stepped back."""
    passed_s = time.time() - at
    return passed_s if passed_s >= 0 else math.inf
