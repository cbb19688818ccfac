"""Search for schedules on other numbers of devices, for a scale table (FlexTrain, section 4.1).

Only pipelines that could be the fastest are searched.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from oppa.errors import InputError
from oppa.pipeline.graph import PipelineShape
from oppa.pipeline.registry import SEARCH, folded
from oppa.pipeline.scaling import ScaleCandidate, ScaledJob, candidate, layouts, pipelines
from oppa.pipeline.search.profiled import choose
from oppa.pipeline.stage_layout import Stages

NODES = 1_000_000
"""Number of actions that the search for one schedule visits; it takes seconds."""
CLOSEST = 4
"""Largest number of pipelines that are searched on one number of devices."""


class _Pipeline(NamedTuple):
    """Describes a pipeline whose schedule may be searched."""

    bound_s: float
    """Seconds that its busiest rank computes, which no schedule can beat."""
    dp: int
    shape: PipelineShape
    layout: str
    stages: Stages


def searched(
    job: ScaledJob, devices: int, *, replicas: Sequence[int] | None, nodes: int = NODES, enough: Callable[[], bool] = lambda: False
) -> Iterator[ScaleCandidate]:
    """Yield ways to run a job on this number of devices with a searched schedule, each within the memory limit.

    Pipelines are tried in ascending order of their busiest rank's compute time, which no schedule can beat. The search ends when no
    pipeline that is left could be faster.

    Args:
        replicas: Allowed values of dp; None allows any.
        nodes: Number of actions to visit for each pipeline.
        enough: Returns True to end the search. The first pipeline that fits is yielded even then, with its fastest schedule so far.
    """
    best_s, tried = float("inf"), 0
    for each in sorted(_pipelines(job, devices, replicas), key=lambda each: each.bound_s):
        if each.bound_s >= best_s or tried == CLOSEST or (tried and enough()):
            return
        try:
            found = choose(
                job.profile,
                each.shape,
                job.replication(each.dp),
                limit_bytes=job.limit_bytes,
                stages=each.stages,
                nodes=nodes,
                enough=enough,
            )
        except InputError:  # it does not fit in any order
            continue
        best_s, tried = min(best_s, found.prediction.step_s), tried + 1
        yield candidate(job, found.schedule, dp=each.dp, schedule=SEARCH, stage_layout=each.layout, stages=each.stages, searched=True)


def _pipelines(job: ScaledJob, devices: int, replicas: Sequence[int] | None) -> Iterator[_Pipeline]:
    """Yield every pipeline of at least two ranks."""
    costs = list(itertools.accumulate(job.profile.costs, initial=0.0))
    for dp, pp, micro_batches in pipelines(job, devices, replicas) if job.zero_stage <= 2 else ():
        for chunks in range(1, -(-job.profile.divisions // pp) + 1) if pp > 1 else ():
            shape = PipelineShape(ranks=pp, micro_batches=micro_batches, chunks=chunks, folded=folded(SEARCH, chunks))
            for layout, stages in layouts(job.profile, shape):
                busy_s = shape.sum_by_rank([costs[parts.stop] - costs[parts.start] for parts in stages])
                yield _Pipeline(bound_s=micro_batches * max(busy_s), dp=dp, shape=shape, layout=layout, stages=stages)
