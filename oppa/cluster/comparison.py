"""One trace under several policies: how much sooner elastic jobs are done than if nobody grew, and what it costs others."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from oppa.cluster.decisions import Settings
from oppa.cluster.generator import WAITS_S, Like
from oppa.cluster.job import Job
from oppa.cluster.nodes import Nodes
from oppa.cluster.policies import policy_of
from oppa.cluster.result import Result
from oppa.cluster.simulation import Failures, Simulation

NONE, FREE = "none", "free changes"
"""Nobody grows; everybody does, whenever something is idle, and no change costs anything: what there is to be had."""
Told = Callable[[str, int], None]
"""Hears of a policy, and how many of its jobs are done."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What jobs run on, and by which rules."""

    gpus: int
    each: int = 8
    """GPUs of a node."""
    settings: Settings = dataclasses.field(default_factory=Settings)
    backfill: bool = False
    failures: Failures | None = None

    def run(self, jobs: Sequence[Job], policy: str, tell: Callable[[int], None] = lambda _: None) -> Result:
        """All of a trace; raises InputError for one that cannot be run, and for a policy that is not known."""
        chosen = policy_of("greedy" if policy == FREE else policy, self.settings)
        trace = [dataclasses.replace(job, save_s=0.0, start_s=0.0) for job in jobs] if policy == FREE else jobs
        nodes = Nodes.of(self.gpus, self.each)
        return Simulation(trace, nodes, chosen, self.settings, backfill=self.backfill, failures=self.failures).run(tell)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy."""

    policy: str
    completion_s: float
    """Of elastic jobs, from arrival to end: mean."""
    queue_s: float
    """Of all others: mean."""
    utilisation: float
    """Until the last job has come."""
    spare_gpu_s: float
    """That elastic jobs held beyond what they asked for."""
    changes: int
    jobs: int
    elastic: int


def compared(jobs: Sequence[Job], cluster: Cluster, policies: Sequence[str], tell: Told = lambda *_: None) -> list[tuple[Row, Result]]:
    """A trace under each of them."""
    names = {job.name for job in jobs if job.table is not None}
    found = []
    for policy in policies:
        result = cluster.run(jobs, policy, lambda done, policy=policy: tell(policy, done))  # type: ignore[misc]
        found.append((_row(policy, result, names, jobs[-1].arrival_s), result))
    return found


def _row(policy: str, result: Result, names: set[str], until_s: float) -> Row:
    return Row(
        policy=policy,
        completion_s=result.completion_s(names),
        queue_s=result.queue_s(names),
        utilisation=result.usage.share(until_s),
        spare_gpu_s=result.usage.spare_gpu_s(until_s),
        changes=len(result.scalings),
        jobs=len(result.done),
        elastic=len(names),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """How long one type of jobs waited."""

    kind: str
    jobs: int
    mean_s: float
    shares: tuple[float, ...]
    """That waited no longer than `WAITS_S`."""
    published: tuple[float, ...]


def queues(result: Result, known: Like) -> list[Queued]:
    """What was simulated beside what is published, type by type."""
    found = []
    for kind in known.kinds:
        waits = np.array([each.queue_s for each in result.done if each.job.kind == kind.name])
        shares = tuple(float((waits <= wait_s).mean()) for wait_s in WAITS_S) if len(waits) else (1.0,) * len(WAITS_S)
        mean_s = float(waits.mean()) if len(waits) else 0.0
        found.append(Queued(kind=kind.name, jobs=len(waits), mean_s=mean_s, shares=shares, published=kind.queued))
    return found
