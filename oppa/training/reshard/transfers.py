"""Plan the transfers of a change of layout: boxes of whole tensors, each from a rank that holds it to a rank that lacks it.

A rank keeps the boxes that it holds in both layouts. Each other box that it will hold has exactly one sender. That is the rank that holds
it and has the fewest bytes to send so far. Every rank computes the same plan on its own.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator

from oppa.training.model.tensor_slices import Box, cells, elements
from oppa.training.reshard.shards import Layout, Shard, TensorKey

Boxes = tuple[tuple[Box, ...], ...]
"""Boxes of one whole tensor that each rank holds, one value per rank."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Describes the transfer of one box of a whole tensor from one rank to another."""

    key: TensorKey
    box: Box
    sender: int
    receiver: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """Describes a box that all `holders` hold in the source layout; the `receivers` hold it in the target layout only."""

    box: Box
    holders: tuple[int, ...]
    receivers: tuple[int, ...]


def transfers(source: Layout, target: Layout) -> list[Transfer]:
    """Return all transfers, tensor by tensor in the order of names; the layouts are of one model, on any numbers of ranks."""
    sent: collections.Counter[int] = collections.Counter()
    held, wanted = boxes_by_key(source), boxes_by_key(target)
    sizes = {shard.key: shard.dtype.itemsize for shard in _all(target)}
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
    """Return the holders and receivers of each box of one tensor; the result is cached, because many tensors have the same boxes."""
    found = []
    ranks_holding, ranks_needing = _ranks_by_box(held), _ranks_by_box(wanted)
    for cell, boxes in cells(ranks_holding.keys() | ranks_needing.keys()).items():
        holders, needers = (set[int]().union(*(ranks[box] for box in boxes if box in ranks)) for ranks in (ranks_holding, ranks_needing))
        assert holders, "a layout holds all of the model"
        found.append(Flow(cell, tuple(sorted(holders)), tuple(sorted(needers - holders))))
    return tuple(found)


def boxes_by_key(layout: Layout) -> dict[TensorKey, Boxes]:
    """Return the boxes that each rank holds, by whole tensor; the order is that of global names, whatever the layout."""
    found = collections.defaultdict[TensorKey, list[list[Box]]](lambda: [[] for _ in layout])
    for rank, shards in enumerate(layout):
        for shard in shards:
            found[shard.key][rank].append(shard.box)
    return {key: tuple(map(tuple, found[key])) for key in sorted(found, key=operator.attrgetter("name", "kind"))}


def evenly(source: Layout, target: Layout) -> list[TensorKey]:
    """Return all tensors in an order in which each rank releases its old state at the rate at which it receives its new state.

    No rank then ever holds more than the larger of the two. In the order of names, the first stage of a pipeline would receive all its
    state before the others.
    """
    held, wanted = boxes_by_key(source), boxes_by_key(target)
    sizes = {shard.key: math.prod(shard.shape) for shard in _all(target)}
    alike = collections.defaultdict[object, list[TensorKey]](list)
    for key, boxes in wanted.items():
        alike[tuple(map(bool, held[key])), tuple(map(bool, boxes))].append(key)
    places = dict[TensorKey, float]()
    for keys in alike.values():
        ends = list(itertools.accumulate(sizes[key] for key in keys))
        places |= {key: (end - sizes[key] / 2) / ends[-1] for key, end in zip(keys, ends, strict=True)}
    return sorted(places, key=places.__getitem__)


def _ranks_by_box(layout: Boxes) -> dict[Box, list[int]]:
    found = collections.defaultdict[Box, list[int]](list)
    for rank, boxes in enumerate(layout):
        for box in boxes:
            found[box].append(rank)
    return dict(found)


def _all(layout: Layout) -> Iterator[Shard]:
    return (shard for shards in layout for shard in shards)


def rounds(plan: Iterable[Transfer], keys: Iterable[TensorKey], limit_bytes: int) -> Iterator[tuple[list[TensorKey], list[Transfer]]]:
    """Yield the plan in rounds of whole tensors that move at most `limit_bytes`, or of one tensor; `keys` has all tensors, moved or not."""
    by_key = collections.defaultdict(list)
    for transfer in plan:
        by_key[transfer.key].append(transfer)
    now: list[TensorKey] = []
    moving_bytes = 0
    for key in keys:
        key_bytes = sum(transfer.nbytes for transfer in by_key[key])
        if now and moving_bytes + key_bytes > limit_bytes:
            yield now, [transfer for one in now for transfer in by_key[one]]
            now, moving_bytes = [], 0
        now.append(key)
        moving_bytes += key_bytes
    yield now, [transfer for one in now for transfer in by_key[one]]
