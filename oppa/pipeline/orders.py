"""Orders by name, whether they are laid out by hand or searched for."""

import functools

from oppa.errors import InputError, nearest
from oppa.pipeline import schedules
from oppa.pipeline.costs import Costs
from oppa.pipeline.graph import Order, Shape
from oppa.pipeline.search.joint import search

SEARCH = "search"
SCHEDULES = (*schedules.SCHEDULES, SEARCH)
SPLIT = (*schedules.SPLIT, SEARCH)
CHUNKS = {**schedules.CHUNKS, SEARCH: (1, 0)}
NODES = 1_000_000
"""Of a search at the beginning of a run: less than a second."""


@functools.lru_cache(maxsize=512)
def order(schedule: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """The order of a schedule; the same object for the same arguments.

    `search` is the shortest order found for what schedules by hand are laid out for, too: equal stages whose forward pass, inputs'
    gradients and weights' gradients take as long; within the memory of 1F1B.

    Raises:
        InputError: a schedule that is not known, or chunks and micro-batches that it cannot have.
    """
    if schedule not in SCHEDULES:
        raise InputError(f'`schedule = "{schedule}"` is not known', hint=nearest(schedule, SCHEDULES))
    if schedule != SEARCH:
        return schedules.order(schedule, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    equal = Costs(forward_s=[1.0] * ranks, backward_s=[1.0] * ranks, weight_s=[1.0] * ranks)
    shape = Shape(ranks=ranks, micro_batches=micro_batches, chunks=chunks, folded=folded(schedule, chunks))
    return search(equal, [shape], limit=ranks, recompute=False, nodes=NODES, proving_s=0).order


def folded(schedule: str, chunks: int) -> bool:
    """Whether the stages of a schedule lie as a V; what is searched for has them so where that can be: it is faster at equal memory."""
    return schedule in schedules.FOLDED or (schedule == SEARCH and chunks == 2)
