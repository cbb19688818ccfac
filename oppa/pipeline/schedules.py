"""Schedules: orders by name, for any number of ranks, micro-batches and model chunks.

gpipe            all forward passes, then all backward passes                                  Huang et al. 2019
1f1b             p-1-r forward passes on rank r, then forward and backward in turn             Narayanan et al. 2019 (PipeDream-Flush)
interleaved      the same with v chunks, in rounds of p micro-batches                          Narayanan et al. 2021
zb-h1            1f1b whose W are late by r on rank r, and fill the bubble                     Qi et al. 2024
interleaved-zb   the same with v chunks, as torch.distributed.pipelining has it
zb-v             two chunks, folded: the last stage lies beside the first                      Qi et al. 2024, section 6
"""

import collections
import functools
from collections.abc import Callable, Iterable

from oppa.errors import InputError, nearest
from oppa.pipeline.graph import KINDS, Node, Order, Shape

F, B, W = KINDS
_NodesOf = Callable[[int], Iterable[Node]]


@functools.lru_cache(maxsize=512)
def order(schedule: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """The order of a schedule; the same object for the same arguments.

    Raises:
        InputError: a schedule that is not known, or chunks and micro-batches that it cannot have.
    """
    if schedule not in SCHEDULES:
        raise InputError(f'`schedule = "{schedule}"` is not known', hint=nearest(schedule, SCHEDULES))
    least, most = _CHUNKS[schedule]
    if not least <= chunks <= (most or chunks):
        hint = f"use {least}" if least == most else f"use at least {least}"
        raise InputError(f'`model_chunks = {chunks}` is not possible with `schedule = "{schedule}"`', hint=hint)
    return SCHEDULES[schedule](Shape(ranks=ranks, micro_batches=micro_batches, chunks=chunks, folded=schedule == "zb-v"))


def _gpipe(shape: Shape) -> Order:
    return _order(shape, lambda rank: [Node(kind, rank, each) for kind in (F, B) for each in range(shape.micro_batches)], split=False)


def _one_forward_one_backward(shape: Shape) -> Order:
    return _order(shape, lambda rank: _alternating(shape, rank, hop=1, split=False), split=False)


def _interleaved(shape: Shape) -> Order:
    return _order(shape, lambda rank: _alternating(shape, rank, hop=2, split=False), split=False)


def _zero_bubble(shape: Shape) -> Order:
    return _order(shape, lambda rank: _alternating(shape, rank, hop=1, split=True), split=True)


def _folded_zero_bubble(shape: Shape) -> Order:
    return _order(shape, lambda rank: [node for node in _folded(shape, rank) if node.micro_batch < shape.micro_batches], split=True)


SCHEDULES = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zb-h1": _zero_bubble,
    "interleaved-zb": _zero_bubble,
    "zb-v": _folded_zero_bubble,
}
_CHUNKS = {"gpipe": (1, 1), "1f1b": (1, 1), "interleaved": (1, 0), "zb-h1": (1, 1), "interleaved-zb": (1, 0), "zb-v": (2, 2)}
"""The fewest and the most chunks of a rank; 0: any number."""


def _order(shape: Shape, nodes_of: _NodesOf, *, split: bool) -> Order:
    return Order(shape=shape, split=split, ranks=tuple(tuple(nodes_of(rank)) for rank in range(shape.ranks)))


def _alternating(shape: Shape, rank: int, *, hop: int, split: bool) -> list[Node]:
    """Forward and backward passes in turn, after so many forward passes that the ranks below are busy: `hop` more for each of them."""
    p, v = shape.ranks, shape.chunks
    round_ = _round(shape)
    units = shape.micro_batches * v
    ahead = min((v - 1) * round_ + hop * (p - 1 - rank), units)
    rank_ = _Rank()
    for step in range(units + ahead):
        if step < units:
            rank_.do(F, (step // round_ % v) * p + rank)
        if step >= ahead:
            done = step - ahead
            rank_.do(B, (v - 1 - done // round_ % v) * p + rank)
            if split and done >= rank:
                rank_.do(W, (v - 1 - (done - rank) // round_ % v) * p + rank)
    for late in range(max(units - rank, 0), units) if split else ():
        rank_.do(W, (v - 1 - late // round_ % v) * p + rank)
    return rank_.nodes


def _round(shape: Shape) -> int:
    """Micro-batches of which each chunk does all before the next chunk does the first."""
    p, m, v = shape.ranks, shape.micro_batches, shape.chunks
    rounds = max(1, m // p)
    if v > 1 and m % rounds:
        hint = f"use a multiple of {p}" if m > p else f"use at most {p}"
        raise InputError(f"{m} micro-batches are no whole number of rounds of {p} ranks", hint=hint)
    return m // rounds if v > 1 else m


def _folded(shape: Shape, rank: int) -> list[Node]:
    """One rank of ZB-V, for at least 2 p - 1 micro-batches: with fewer it is the same without the others."""
    p, down, up, rank_ = shape.ranks, rank, shape.stages - 1 - rank, _Rank()
    for _ in range(2 * (p - rank) - 1):
        rank_.do(F, down)
    for _ in range(rank):
        rank_.do(F, up).do(F, down)
    for _ in range(p - rank):
        rank_.do(F, up).do(B, up).do(W, up)
    m = max(2 * p - 1, shape.micro_batches)
    while rank_.count(F, up) < rank_.count(F, down) or rank_.count(F, down) < m:
        if rank_.count(F, down) < m:
            rank_.do(F, down)
        rank_.do(B, down).do(W, down).do(F, up).do(B, up).do(W, up)
    for _ in range(rank):
        rank_.do(B, down).do(B, up)
    for _ in range(p - rank):
        rank_.do(B, down).do(W, down)
    for stage in (up, down):
        while rank_.count(W, stage) < rank_.count(B, stage):
            rank_.do(W, stage)
    return rank_.nodes


class _Rank:
    """A rank's nodes as they are written down: each stage takes the micro-batches in turn."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._done: collections.Counter[tuple[int, int]] = collections.Counter()

    def do(self, kind: int, stage: int) -> "_Rank":
        self.nodes.append(Node(kind, stage, self._done[kind, stage]))
        self._done[kind, stage] += 1
        return self

    def count(self, kind: int, stage: int) -> int:
        return self._done[kind, stage]
