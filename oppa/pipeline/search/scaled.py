"""Searched orders on other numbers of devices, for a scale table (FlexTrain, section 4.1): of the pipelines that could be fastest."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from oppa.errors import InputError
from oppa.pipeline.graph import Shape
from oppa.pipeline.orders import SEARCH, folded
from oppa.pipeline.prediction import sum_of_ranks
from oppa.pipeline.scaling import Candidate, Job, candidate, layouts, pipelines
from oppa.pipeline.search.profiled import choose
from oppa.pipeline.stage_layout import Stages

NODES = 1_000_000
"""Nodes that the search for one order visits: seconds."""
CLOSEST = 4
"""Pipelines on one number of devices whose order is searched for."""


def searched(
    job: Job, devices: int, *, replicas: Sequence[int] | None, nodes: int = NODES, enough: Callable[[], bool] = lambda: False
) -> Iterator[Candidate]:
    """Yield ways to run a job on so many devices in an order that is searched for, each within the limit of memory.

    Pipelines are tried in the order of what their busiest rank computes for, which no order can beat, until none left could be faster.

    Args:
        replicas: What dp may be; None: anything.
        nodes: How far to search for each.
        enough: Whether to search no more: what is left of the first pipeline that fits is then the fastest schedule by name.
    """
    best_s, tried = float("inf"), 0
    for bound_s, dp, shape, layout, stages in sorted(_pipelines(job, devices, replicas), key=lambda each: each[0]):
        if bound_s >= best_s or tried == CLOSEST or (tried and enough()):
            return
        try:
            found = choose(
                job.profile,
                shape,
                dp=dp,
                zero_stage=job.zero_stage,
                limit_bytes=job.limit_bytes,
                stages=stages,
                nodes=nodes,
                enough=enough,
            )
        except InputError:  # it does not fit in any order
            continue
        best_s, tried = min(best_s, found.prediction.step_s), tried + 1
        yield candidate(job, found.order, dp=dp, schedule=SEARCH, stage_layout=layout, stages=stages, searched=True)


def _pipelines(job: Job, devices: int, replicas: Sequence[int] | None) -> Iterator[tuple[float, int, Shape, str, Stages]]:
    """Every pipeline of at least two ranks, with the seconds that its busiest rank computes for."""
    costs = list(itertools.accumulate(job.profile.costs, initial=0.0))
    for dp, pp, micro_batches in pipelines(job, devices, replicas) if job.zero_stage <= 2 else ():
        for chunks in range(1, -(-job.profile.divisions // pp) + 1) if pp > 1 else ():
            shape = Shape(ranks=pp, micro_batches=micro_batches, chunks=chunks, folded=folded(SEARCH, chunks))
            for layout, stages in layouts(job.profile, shape):
                busy_s = sum_of_ranks(shape, [costs[parts.stop] - costs[parts.start] for parts in stages])
                yield micro_batches * max(busy_s), dp, shape, layout, stages
