"""Build schedules by name, for any number of ranks, micro-batches and model chunks.

gpipe            all forward passes, then all backward passes                                  Huang et al. 2019
1f1b             p-1-r forward passes on rank r, then forward and backward in turn             Narayanan et al. 2019 (PipeDream-Flush)
interleaved      the same with v chunks, in rounds of p micro-batches                          Narayanan et al. 2021
memory-minimal   one micro-batch after the other, each through all chunks and back             FlexTrain, section 4.1
zb-h1            1f1b with W delayed by r backward passes on rank r, which fills the bubble    Qi et al. 2024
zb-h2            the same with twice the forward passes first, and W delayed by 2 r            Qi et al. 2024
interleaved-zb   zb-h1 with v chunks, as torch.distributed.pipelining has it
zb-v             two chunks in a V: the first rank holds the first and the last stage          Qi et al. 2024, section 6
dualpipe-v       the same; forward passes of one chunk alternate with backward passes of the other  DeepSeek-AI 2025, cut in half

These schedules assume equal times. `oppa.pipeline.search` finds one for measured times and memory.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

from oppa.errors import InputError, require_known
from oppa.pipeline.graph import KINDS, Action, PipelineShape, Schedule
from oppa.pipeline.schedule_builder import ScheduleBuilder
from oppa.pipeline.v_schedules import dualpipe_v, zb_v

F, B, W = KINDS


@functools.lru_cache(maxsize=512)
def build_schedule(name: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return a schedule by name; the same arguments return the same object.

    Raises:
        InputError: the schedule is unknown, or does not allow these chunks or micro-batches.
    """
    require_known(name, SCHEDULES, f'`schedule = "{name}"` is unknown')
    least, most = CHUNKS[name]
    if not least <= chunks <= (most or chunks):
        hint = f"use {least}" if least == most else f"use at least {least}"
        raise InputError(f'`model_chunks = {chunks}` is not possible with `schedule = "{name}"`', hint=hint)
    shape = PipelineShape(ranks=ranks, micro_batches=micro_batches, chunks=chunks, folded=name in FOLDED)
    return Schedule(shape=shape, split=name in SPLIT, ranks=tuple(tuple(SCHEDULES[name](shape, rank)) for rank in range(ranks)))


def schedules_of(shape: PipelineShape) -> Iterator[tuple[str, Schedule]]:
    """Yield every schedule of a shape, with its name."""
    for name in SCHEDULES:
        try:
            found = build_schedule(name, ranks=shape.ranks, micro_batches=shape.micro_batches, chunks=shape.chunks)
        except InputError:  # it does not allow these chunks or micro-batches
            continue
        if found.shape == shape:
            yield name, found


def one_by_one(shape: PipelineShape, *, split: bool) -> Schedule:
    """Return the schedule of one micro-batch at a time, which needs the least memory.

    Args:
        split: Compute both halves of each backward pass separately.
    """
    ranks = tuple(tuple(_one_by_one(shape, rank, split=split)) for rank in range(shape.ranks))
    return Schedule(shape=shape, split=split, apart=split, ranks=ranks)


SCHEDULES: Mapping[str, Callable[[PipelineShape, int], Iterable[Action]]] = {
    "gpipe": lambda shape, rank: [Action(kind, rank, each) for kind in (F, B) for each in range(shape.micro_batches)],
    "1f1b": lambda shape, rank: _alternating(shape, rank, hop=1),
    "interleaved": lambda shape, rank: _alternating(shape, rank, hop=2),
    "memory-minimal": lambda shape, rank: _one_by_one(shape, rank),
    "zb-h1": lambda shape, rank: _alternating(shape, rank, hop=1, late=rank),
    "zb-h2": lambda shape, rank: _alternating(shape, rank, hop=2, late=2 * rank),
    "interleaved-zb": lambda shape, rank: _alternating(shape, rank, hop=1, late=rank),
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
}
"""The actions of a rank, by the name of the schedule."""
FOLDED = ("zb-v", "dualpipe-v")
SPLIT = ("zb-h1", "zb-h2", "interleaved-zb", "zb-v", "dualpipe-v")
"""Schedules in which weights' gradients are actions of their own."""
CHUNKS = (
    dict.fromkeys(SCHEDULES, (1, 1))
    | dict.fromkeys(("interleaved", "interleaved-zb", "memory-minimal"), (1, 0))
    | dict.fromkeys(FOLDED, (2, 2))
)
"""Smallest and largest number of chunks of a rank; a largest number of 0 means no bound."""


def _alternating(shape: PipelineShape, rank: int, *, hop: int, late: int | None = None) -> list[Action]:
    """Return a rank's actions: forward passes that fill the pipeline, then forward and backward passes in turn.

    Args:
        hop: Number of forward passes at the beginning for each later rank.
        late: Number of backward passes by which weights' gradients are delayed; None means that they are not actions of their own.
    """
    p, v = shape.ranks, shape.chunks
    round_ = _round(shape)
    units = shape.micro_batches * v
    ahead = min((v - 1) * round_ + hop * (p - 1 - rank), units)
    rank_ = ScheduleBuilder()
    for step in range(units + ahead):
        if step < units:
            rank_.do(F, (step // round_ % v) * p + rank)
        if step >= ahead:
            done = step - ahead
            rank_.do(B, (v - 1 - done // round_ % v) * p + rank)
            if late is not None and done >= late:
                rank_.do(W, (v - 1 - (done - late) // round_ % v) * p + rank)
    for left in range(max(units - late, 0), units) if late is not None else ():
        rank_.do(W, (v - 1 - left // round_ % v) * p + rank)
    return rank_.actions


def _one_by_one(shape: PipelineShape, rank: int, *, split: bool = False) -> list[Action]:
    """Return a rank's actions: each micro-batch goes forward through all chunks of the rank, then back."""
    stages = shape.stages_of(rank)
    rank_ = ScheduleBuilder()
    for _ in range(shape.micro_batches):
        for stage in stages:
            rank_.do(F, stage)
        for stage in reversed(stages):
            rank_.do(B, stage)
            if split:
                rank_.do(W, stage)
    return rank_.actions


def _round(shape: PipelineShape) -> int:
    """Return how many micro-batches a chunk computes before the next chunk begins.

    Raises:
        InputError: the micro-batches are not a whole number of such rounds.
    """
    p, m, v = shape.ranks, shape.micro_batches, shape.chunks
    rounds = max(1, m // p)
    if v > 1 and m % rounds:
        hint = f"use a multiple of {p}" if m > p else f"use at most {p}"
        raise InputError(f"{m} micro-batches do not divide into whole rounds of {p} ranks", hint=hint)
    return m // rounds if v > 1 else m
