"""Return schedules by name, those of the literature and searched ones."""

import functools

from oppa.errors import require_known
from oppa.pipeline import schedules
from oppa.pipeline.costs import Costs
from oppa.pipeline.graph import PipelineShape, Schedule
from oppa.pipeline.search.joint import search

SEARCH = "search"
SCHEDULES = (*schedules.SCHEDULES, SEARCH)
SPLIT = (*schedules.SPLIT, SEARCH)
CHUNKS = {**schedules.CHUNKS, SEARCH: (1, 0)}
NODES = 1_000_000
"""Number of actions that a search at the beginning of a run visits. It takes a second or two, and more for thousands of actions."""


@functools.lru_cache(maxsize=512)
def build_schedule(name: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return a schedule by name; the same arguments return the same object.

    `search` is the shortest schedule found within the memory of 1F1B. It assumes equal stages whose forward pass, inputs' gradients and
    weights' gradients take equally long, as the schedules by name do.

    Raises:
        InputError: the schedule is unknown, or does not allow these chunks or micro-batches.
    """
    require_known(name, SCHEDULES, f'`schedule = "{name}"` is unknown')
    if name != SEARCH:
        return schedules.build_schedule(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    equal = Costs(forward_s=[1.0] * ranks, backward_s=[1.0] * ranks, weight_s=[1.0] * ranks)
    shape = PipelineShape(ranks=ranks, micro_batches=micro_batches, chunks=chunks, folded=folded(name, chunks))
    return search(equal, [shape], limit=ranks, recompute=False, nodes=NODES, proving_s=0).schedule


def folded(name: str, chunks: int) -> bool:
    """Return whether the stages of a schedule form a V; a search with two chunks uses a V, which is faster at equal memory."""
    return name in schedules.FOLDED or (name == SEARCH and chunks == 2)
