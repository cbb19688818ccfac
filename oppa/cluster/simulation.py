"""Discrete-event simulation of a trace on a cluster: gang-scheduled jobs, queue, nodes, elastic jobs, and node failures.

Jobs wait in a queue by priority, then by arrival. While the first job cannot start, no other job does. With `backfill`, a job may overtake
if it does not delay the first one (EASY, Lifka 1995), by the predicted ends of running jobs. Elastic jobs then return GPUs to it, too.

An elastic job that changes its size pauses while it writes a checkpoint and resumes from it. GPUs of a scale-up belong to the job
from the decision on, and are prepared while it writes the checkpoint. GPUs that it releases are free once the checkpoint is written.
"""

import dataclasses
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from oppa.cluster.arrivals import Arrivals
from oppa.cluster.job import TraceJob, require_possible
from oppa.cluster.nodes import Holding, Nodes, less, surplus
from oppa.cluster.policies import ScalingPolicy
from oppa.cluster.result import EndedJob, Result, Usage
from oppa.cluster.scaling import Running, ScaleDecision, Settings, reclaim
from oppa.cluster.simulated_job import SimulatedJob
from oppa.errors import InputError

CHECK_S = 60.0
"""Seconds between two checks for idle GPUs."""
PROGRESS_EVERY = 4096
"""Number of arrivals between two progress reports."""
HARDLY = 4
"""Maximum mean number of failures per checkpoint interval that is accepted."""
OVERTAKING = 200
"""Number of jobs at the head of the queue that are considered for backfill, the first included."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Defines random node failures at a constant rate. A job that loses a node resumes from its last checkpoint.

    It goes back into the queue, by priority and its original arrival.
    """

    every_s: float
    """Mean seconds between two failures of one node."""
    repair_s: float = 3600.0
    """Seconds until a failed node is back."""
    checkpoint_s: float = 1800.0
    """Seconds between two checkpoints of a job."""
    seed: int = 0


class _Event(NamedTuple):
    """Describes an event of the simulation; events at the same time run in the order of their numbers."""

    time_s: float
    number: int
    act: Callable[[int], None]
    """Callback, which receives the number."""


class _LaterStart(NamedTuple):
    """Holds the changes that let a later job start, none if GPUs on their way suffice."""

    changes: Sequence[ScaleDecision]
    given_s: float
    """Time at which all GPUs are free."""
    until_s: float
    """Predicted start of the first job after the changes."""
    spare: int
    """Number of whole nodes left then."""


class Simulation:
    """Simulates one trace under one policy.

    Args:
        jobs: Jobs in any order.
        nodes: Nodes of the cluster, all of them free.
        policy: Scaling policy; None for no scaling.
        settings: Which arrivals count, and for how long.
        backfill: True if jobs may overtake.
        failures: Node failures; None for no failures.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        nodes: Nodes,
        policy: ScalingPolicy | None,
        settings: Settings,
        *,
        backfill: bool = False,
        failures: Failures | None = None,
    ) -> None:
        require_possible(jobs, nodes)
        if failures:
            require_progress(jobs, nodes, failures)
        self._nodes, self._policy, self._backfill, self._failures = nodes, policy, backfill, failures
        self._jobs = sorted(jobs, key=lambda job: (job.arrival_s, job.name))
        self._arrivals = Arrivals(settings.window_s, settings.counted_gpus)
        self._numbers = itertools.count(1)
        self._events: list[_Event] = []
        self._queue: list[tuple[int, int, SimulatedJob]] = []
        self._running: dict[str, SimulatedJob] = {}
        self._elastic: dict[str, SimulatedJob] = {}
        """Running elastic jobs by name; empty without a policy."""
        self._returning: dict[int, tuple[float, Holding]] = {}
        """GPUs that jobs will release, and when, by the number of the event."""
        self._down: dict[int, float] = {}
        """Failed nodes, and the time of their repair."""
        self._shadow: tuple[float, int] | None = None
        """Predicted start of the first waiting job, and the number of whole nodes left then; None until computed."""
        self._checking = False
        self._now_s = 0.0
        self._done: list[EndedJob] = []
        self._scalings: list[tuple[float, ScaleDecision]] = []
        self._usage = Usage(nodes.idle)
        self._random = np.random.default_rng(failures.seed if failures else 0)

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Result:
        """Run the whole simulation; `progress` receives the number of finished jobs at intervals."""
        for node in range(len(self._nodes)) if self._failures else ():
            self._fails_later(node)
        for number, job in enumerate(self._jobs):
            while self._events and self._events[0].time_s <= job.arrival_s:
                self._step()
            self._pass(job.arrival_s)
            self._arrivals.submitted(job.arrival_s, job.gpus)
            self._wait(SimulatedJob(number, job))
            self._schedule()
            if number % PROGRESS_EVERY == 0:
                progress(len(self._done))
        while self._running or self._queue:
            self._step()
        return Result(done=tuple(self._done), scalings=tuple(self._scalings), usage=self._usage)

    def _step(self) -> None:
        event = heapq.heappop(self._events)
        self._pass(event.time_s)
        event.act(event.number)

    def _pass(self, now_s: float) -> None:
        if now_s > self._now_s:
            down, spare = len(self._down) * self._nodes.each, sum(task.spare for task in self._elastic.values())
            self._usage.stay(now_s, idle=self._nodes.idle, down=down, spare=spare)
            self._now_s = now_s

    def _later(self, time_s: float, act: Callable[[int], None]) -> int:
        number = next(self._numbers)
        heapq.heappush(self._events, _Event(time_s, number, act))
        return number

    # Queue

    def _wait(self, task: SimulatedJob) -> None:
        heapq.heappush(self._queue, (-task.job.priority, task.number, task))
        if self._queue[0][2] is task:
            self._shadow = None

    def _schedule(self) -> None:
        """Start jobs in order of the queue, and reclaim the GPUs that the first remaining one lacks, or a later one that may overtake."""
        while self._queue and (holding := self._nodes.take(self._queue[0][2].job.gpus)) is not None:
            self._start(heapq.heappop(self._queue)[2], holding)
            self._shadow = None
        if not self._queue:
            self._check_later()
            return
        for change in self._reclaimed(self._queue[0][2].job):
            self._scale(change)
        if self._backfill:
            self._overtake()
            self._ask_back_for_later()

    def _start(self, task: SimulatedJob, holding: Holding) -> None:
        task.holding, task.gpus, task.speed = holding, task.job.gpus, 1.0
        task.seen_s, task.ready_s = self._now_s, self._now_s + task.restart_s
        if math.isnan(task.started_s):
            task.started_s = self._now_s
        self._running[task.job.name] = task
        if task.job.table is not None and self._policy is not None:
            self._elastic[task.job.name] = task
        self._ends_later(task)

    def _ends_later(self, task: SimulatedJob) -> None:
        task.end = self._later(task.end_s, lambda number: self._end(task, number))

    def _end(self, task: SimulatedJob, number: int) -> None:
        if number != task.end:
            return
        self._stop(task)
        job = task.job
        self._done.append(EndedJob(job=job, started_s=task.started_s, ended_s=self._now_s, gpu_s=task.gpu_s, changes=task.changes))
        self._schedule()

    def _stop(self, task: SimulatedJob) -> None:
        task.advance(self._now_s)
        self._nodes.give(task.holding)
        task.holding, task.gpus, task.end = Holding(), 0, 0
        del self._running[task.job.name]
        self._elastic.pop(task.job.name, None)

    # Backfill

    def _overtake(self) -> None:
        """Start later jobs of the queue that do not delay the first one (backfill)."""
        if self._shadow is None:
            self._shadow = self._start_of(self._queue[0][2].job)
        for entry in heapq.nsmallest(OVERTAKING, self._queue)[1:]:
            task = entry[2]
            until_s, spare = self._shadow
            late = self._now_s + task.restart_s + task.left_s > until_s
            nodes = self._nodes_of(task.job)
            if (late and nodes > spare) or (holding := self._nodes.take(task.job.gpus)) is None:
                continue
            self._queue.remove(entry)
            heapq.heapify(self._queue)
            self._shadow = until_s, spare - (nodes if late else 0)
            self._start(task, holding)

    def _start_of(self, job: TraceJob, changes: Sequence[ScaleDecision] = ()) -> tuple[float, int]:
        """Return when a job can start if no other job does, and the number of whole nodes left then.

        Args:
            changes: Elastic jobs that give GPUs back before that.
        """
        ending = {task.job.name: (task.end_s, task.holding) for task in self._running.values()}
        given = []
        for change in changes:
            task = self._elastic[change.job.name]
            back = surplus(task.holding, change.after)
            given.append((self._now_s + change.job.save_s, back))
            ending[change.job.name] = task.end_on(change.after, self._now_s), less(task.holding, back)
        repaired = ((due_s, {node: self._nodes.each}) for node, due_s in self._down.items())
        freed = (*ending.values(), *given, *self._returning.values(), *repaired)
        found = self._nodes.earliest(job.gpus, sorted(freed, key=lambda each: each[0]))
        assert found is not None, "all nodes together hold any job"
        return found

    def _ask_back_for_later(self) -> None:
        """Reclaim spare GPUs for the first later job that can then overtake, unless an earlier one waits for GPUs on their way."""
        if not self._has_spare or self._nodes.fits(self._queue[0][2].job.gpus, self._freed()):
            return
        starts: dict[int, _LaterStart | None] = {}
        for _, _, task in heapq.nsmallest(OVERTAKING, self._queue)[1:]:
            if task.job.gpus not in starts:
                starts[task.job.gpus] = self._later_start(task.job)
            start = starts[task.job.gpus]
            if start and (start.given_s + task.restart_s + task.left_s <= start.until_s or self._nodes_of(task.job) <= start.spare):
                for change in start.changes:
                    self._scale(change)
                return

    def _later_start(self, job: TraceJob) -> _LaterStart | None:
        """Return what lets a later job start; None if nothing does, or if the first job would start later, as shrunk jobs end later."""
        changes = self._reclaimed(job)
        if not changes and not self._nodes.fits(job.gpus, self._freed()):
            return None
        assert self._shadow is not None
        until_s, spare = self._start_of(self._queue[0][2].job, changes)
        given_s = (*(due_s for due_s, _ in self._returning.values()), *(self._now_s + change.job.save_s for change in changes))
        return _LaterStart(changes, max((self._now_s, *given_s)), until_s, spare) if until_s <= self._shadow[0] else None

    def _nodes_of(self, job: TraceJob) -> int:
        """Return the number of nodes that a job holds, also in part."""
        return math.ceil(job.gpus / self._nodes.each)

    # Elastic jobs

    def _check_later(self) -> None:
        if self._policy is not None and self._elastic and not self._checking:
            self._checking = True
            self._later((self._now_s // CHECK_S + 1) * CHECK_S, lambda _: self._check())

    def _check(self) -> None:
        """Let the policy give idle GPUs to elastic jobs, while no job waits."""
        self._checking = False
        if self._policy is None or self._queue:
            return
        while changes := self._policy.scale(
            self._states(changing=False), self._nodes.idle, self._arrivals.rate(self._now_s), self._possible
        ):
            before = len(self._scalings)
            for change in changes:
                self._scale(change)
            if len(self._scalings) == before or len(changes) > 1:
                break
        self._check_later()

    def _states(self, *, changing: bool) -> list[Running]:
        """Return the running elastic jobs. Jobs that are in the middle of a change are included if `changing` is True."""
        return [Running(task.job, task.gpus) for task in self._elastic.values() if changing or task.ready_s <= self._now_s]

    def _possible(self, running: Running, gpus: int) -> bool:
        return self._nodes.fits(gpus - running.gpus)

    @property
    def _has_spare(self) -> bool:
        return any(task.spare for task in self._elastic.values())

    def _reclaimed(self, job: TraceJob) -> list[ScaleDecision]:
        """Return the changes that give spare GPUs of elastic jobs to a job that cannot start; none if they would not suffice."""
        if not self._has_spare:
            return []
        return reclaim(self._states(changing=True), lambda changes: self._nodes.fits(job.gpus, self._freed(changes)))

    def _freed(self, changes: Sequence[ScaleDecision] = ()) -> Counter[int]:
        """Return the GPUs by node that jobs are releasing, and would release by these changes."""
        freed = Counter[int]()
        for _, given in self._returning.values():
            freed.update(given)
        for change in changes:
            freed.update(surplus(self._elastic[change.job.name].holding, change.after))
        return freed

    def _scale(self, change: ScaleDecision) -> None:
        task = self._elastic[change.job.name]
        more = change.after - task.gpus
        if more > 0:
            holding = self._nodes.take(more)
            if holding is None:
                return
            for node, gpus in holding.items():
                task.holding[node] = task.holding.get(node, 0) + gpus
        if more < 0:
            given, due_s = surplus(task.holding, change.after), self._now_s + task.job.save_s
            task.holding = less(task.holding, given)
            self._returning[self._later(due_s, self._returned)] = due_s, given
        task.resize(change.after, self._now_s)
        self._ends_later(task)
        self._scalings.append((self._now_s, change))
        self._shadow = None

    def _returned(self, number: int) -> None:
        _, given = self._returning.pop(number)
        self._nodes.give(given)
        self._schedule()

    # Failures

    def _fails_later(self, node: int) -> None:
        assert self._failures is not None
        self._later(self._now_s + self._random.exponential(self._failures.every_s), lambda _: self._fail(node))

    def _fail(self, node: int) -> None:
        """Fail a node. Its jobs lose the work since their last checkpoints, and go back into the queue."""
        assert self._failures is not None
        for task in [each for each in self._running.values() if node in each.holding]:
            begun_s = max(task.ready_s, task.started_s)
            self._stop(task)
            lost_s = (self._now_s - begun_s) % self._failures.checkpoint_s if self._now_s > begun_s else 0.0
            task.left_s = min(task.job.duration_s, task.left_s + task.speed * lost_s)
            self._wait(task)
        for _, given in self._returning.values():
            given.pop(node, None)
        self._nodes.fail(node)
        self._shadow = None
        self._down[node] = self._now_s + self._failures.repair_s
        self._later(self._down[node], lambda _: self._repaired(node))
        self._schedule()

    def _repaired(self, node: int) -> None:
        del self._down[node]
        self._nodes.repair(node)
        self._fails_later(node)
        self._shadow = None
        self._schedule()


def require_progress(jobs: Sequence[TraceJob], nodes: Nodes, failures: Failures) -> None:
    """Refuse failures so frequent that a job would hardly ever reach a checkpoint; raises InputError."""
    widest = max(jobs, key=lambda job: job.gpus, default=None)
    spans = math.ceil(widest.gpus / nodes.each) if widest else 1
    if failures.every_s / spans < failures.checkpoint_s / HARDLY:
        needed = failures.checkpoint_s * spans / HARDLY / 86_400
        raise InputError(
            f"nodes that fail every {failures.every_s / 86_400:.3g} days rarely let a job on {spans} nodes reach a checkpoint",
            hint=f"use at least {needed:.3g} days",
        )
