"""Compare scaling policies on one trace: how much sooner elastic jobs finish than without scaling, and the cost for other jobs."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from oppa.cluster.generator import WAITS_S, TraceProfile
from oppa.cluster.job import TraceJob
from oppa.cluster.nodes import Nodes
from oppa.cluster.policies import policy_of
from oppa.cluster.result import Result
from oppa.cluster.scaling import Settings
from oppa.cluster.simulation import Failures, Simulation

NONE, FREE = "none", "free changes"
"""The baseline without scaling, and greedy scale-up whose changes cost nothing: the most that scaling could bring."""
Progress = Callable[[str, int], None]
"""Progress callback: receives the policy and the number of its jobs that are done."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedCluster:
    """Describes the GPUs that jobs run on, and the rules of the scheduler."""

    gpus: int
    each: int = 8
    """GPUs per node."""
    settings: Settings = dataclasses.field(default_factory=Settings)
    backfill: bool = False
    failures: Failures | None = None

    def run(self, jobs: Sequence[TraceJob], policy: str, progress: Callable[[int], None] = lambda _: None) -> Result:
        """Simulate a trace under a policy; raises InputError for a trace that cannot run, and for an unknown policy."""
        chosen = policy_of("greedy" if policy == FREE else policy, self.settings)
        trace = [dataclasses.replace(job, save_s=0.0, start_s=0.0) for job in jobs] if policy == FREE else jobs
        nodes = Nodes.of(self.gpus, self.each)
        return Simulation(trace, nodes, chosen, self.settings, backfill=self.backfill, failures=self.failures).run(progress)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """Holds the results of one policy."""

    policy: str
    completion_s: float
    """Mean seconds from arrival to end, over the elastic jobs."""
    queue_s: float
    """Mean seconds in the queue, over all other jobs."""
    until_s: float
    """Seconds over which GPU time is counted: until the last arrival, or until the last end if all jobs arrive at once."""
    utilisation: float
    """Share of GPU time that was held until then."""
    spare_gpu_s: float
    """GPU seconds until then that elastic jobs held in addition to their request."""
    changes: int
    """Number of changes of size."""
    jobs: int
    """Number of jobs that ended."""
    elastic: int
    """Number of elastic jobs."""


def compared(
    jobs: Sequence[TraceJob], cluster: SharedCluster, policies: Sequence[str], progress: Progress = lambda *_: None
) -> list[tuple[PolicyRow, Result]]:
    """Simulate a trace under each policy, and return a row and the full result of each."""
    names = {job.name for job in jobs if job.table is not None}
    found = []
    for policy in policies:
        result = cluster.run(jobs, policy, lambda done, policy=policy: progress(policy, done))  # type: ignore[misc]
        found.append((_row(policy, result, names, jobs[-1].arrival_s or result.done[-1].ended_s), result))
    return found


def _row(policy: str, result: Result, names: set[str], until_s: float) -> PolicyRow:
    return PolicyRow(
        policy=policy,
        completion_s=result.completion_s(names),
        queue_s=result.queue_s(names),
        until_s=until_s,
        utilisation=result.usage.share(until_s),
        spare_gpu_s=result.usage.spare_gpu_s(until_s),
        changes=len(result.scalings),
        jobs=len(result.done),
        elastic=len(names),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueingTimes:
    """Holds the queueing times of one type of jobs."""

    kind: str
    jobs: int
    mean_s: float | None
    """Mean seconds in the queue; None without jobs, as the shares."""
    shares: tuple[float, ...] | None
    """Shares of jobs that waited no longer than each of `WAITS_S`."""
    published: tuple[float, ...]
    """These shares in the published trace."""


def queues(result: Result, known: TraceProfile) -> list[QueueingTimes]:
    """Return simulated and published queueing times, one entry per type of job."""
    found = []
    for kind in known.kinds:
        waits = np.array([each.queue_s for each in result.done if each.job.kind == kind.name])
        shares = tuple(float((waits <= wait_s).mean()) for wait_s in WAITS_S) if len(waits) else None
        mean_s = float(waits.mean()) if len(waits) else None
        found.append(QueueingTimes(kind=kind.name, jobs=len(waits), mean_s=mean_s, shares=shares, published=kind.queued))
    return found
