"""What has to move when a layout becomes another one: boxes of whole tensors, each from one rank that holds it to one that lacks it.

A rank keeps what it holds in both layouts. Whatever else it will hold comes from exactly one sender; where several ranks could
send, the one does that has least to send so far. Every rank draws up the same plan by itself.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator

from oppa.training.boxes import Box, cells, elements, inside
from oppa.training.holdings import Holding, Key, Layout

Boxes = tuple[tuple[Box, ...], ...]
"""The boxes of one whole tensor that each rank holds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One box of one whole tensor, from a rank to another."""

    key: Key
    box: Box
    sender: int
    receiver: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """A box that all `holders` hold in one layout, and that the `receivers` hold in the other one alone."""

    box: Box
    holders: tuple[int, ...]
    receivers: tuple[int, ...]


def transfers(source: Layout, target: Layout) -> list[Transfer]:
    """All of them, tensor by tensor in the order of the target's holdings; the layouts are of one model, on any numbers of ranks."""
    sent: collections.Counter[int] = collections.Counter()
    held, wanted = boxes_by_key(source), boxes_by_key(target)
    sizes = {holding.key: holding.dtype.itemsize for holding in _all(target)}
    plan = []
    for key, boxes in wanted.items():
        for flow in flows(held[key], boxes):
            nbytes = elements(flow.box) * sizes[key]
            for receiver in flow.receivers:
                sender = min(flow.holders, key=lambda rank: (sent[rank], rank))
                sent[sender] += nbytes
                plan.append(Transfer(key=key, box=flow.box, sender=sender, receiver=receiver, nbytes=nbytes))
    return plan


@functools.lru_cache(4096)
def flows(held: Boxes, wanted: Boxes) -> tuple[Flow, ...]:
    """Who holds and who lacks each box of one tensor; most tensors of a model have the same."""
    found = []
    for cell in cells(frozenset(box for boxes in (*held, *wanted) for box in boxes)):
        holders, needers = _ranks_with(cell, held), _ranks_with(cell, wanted)
        assert holders, "a layout holds all of the model"
        found.append(Flow(cell, holders, tuple(rank for rank in needers if rank not in holders)))
    return tuple(found)


def boxes_by_key(layout: Layout) -> dict[Key, Boxes]:
    """The boxes that each rank holds, by whole tensor; in the order of names within the stages, whatever the layout."""
    found = collections.defaultdict[Key, list[list[Box]]](lambda: [[] for _ in layout])
    for rank, holdings in enumerate(layout):
        for holding in holdings:
            found[holding.key][rank].append(holding.box)
    return {key: tuple(map(tuple, found[key])) for key in sorted(found, key=operator.attrgetter("name", "kind"))}


def evenly(source: Layout, target: Layout) -> list[Key]:
    """All tensors, in an order by which each rank gives away what it held at the pace at which it gets what it will hold.

    Then no rank ever has more than the larger of the two. By names, the first stage of a pipeline would get everything before all others.
    """
    held, wanted = boxes_by_key(source), boxes_by_key(target)
    sizes = {holding.key: math.prod(holding.shape) for holding in _all(target)}
    alike = collections.defaultdict[object, list[Key]](list)
    for key, boxes in wanted.items():
        alike[tuple(map(bool, held[key])), tuple(map(bool, boxes))].append(key)
    places = dict[Key, float]()
    for keys in alike.values():
        ends = list(itertools.accumulate(sizes[key] for key in keys))
        places |= {key: (end - sizes[key] / 2) / ends[-1] for key, end in zip(keys, ends, strict=True)}
    return sorted(places, key=places.__getitem__)


def _ranks_with(cell: Box, layout: Boxes) -> tuple[int, ...]:
    return tuple(rank for rank, boxes in enumerate(layout) if any(inside(cell, box) for box in boxes))


def _all(layout: Layout) -> Iterator[Holding]:
    return (holding for holdings in layout for holding in holdings)


def rounds(plan: Iterable[Transfer], keys: Iterable[Key], limit_bytes: int) -> Iterator[tuple[list[Key], list[Transfer]]]:
    """The plan in parts of whole tensors, as many as move `limit_bytes` in all, or one; `keys` are all tensors, moved or not."""
    by_key = collections.defaultdict(list)
    for transfer in plan:
        by_key[transfer.key].append(transfer)
    now: list[Key] = []
    moving_bytes = 0
    for key in keys:
        key_bytes = sum(transfer.nbytes for transfer in by_key[key])
        if now and moving_bytes + key_bytes > limit_bytes:
            yield now, [transfer for one in now for transfer in by_key[one]]
            now, moving_bytes = [], 0
        now.append(key)
        moving_bytes += key_bytes
    yield now, [transfer for one in now for transfer in by_key[one]]
