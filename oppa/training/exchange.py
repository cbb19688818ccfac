"""Moves the training state of a rank from what it was staged in to where the new layout wants it, with its peers, round by round.

Staged tensors are dropped as soon as all ranks that need them have them, and tensors come in an order by which no rank gets faster than it
gives away: a change of layout takes no more memory than the larger of the two (`tests/training/test_reshard_memory.py`).
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.training.boxes import Box, common, index, inside
from oppa.training.holdings import Key, Layout
from oppa.training.transfers import Transfer, evenly, rounds, transfers

ROUND_BYTES, ROUND_SHARE = 32 << 20, 1 / 8
"""Moved at once, over all ranks; a rank has that much in buffers, twice at most. No more than this share of what the fullest rank holds."""

Held = Sequence[tuple[Box, Tensor]]
"""What a rank holds of one whole tensor: boxes, and the tensors that have their elements."""
State = dict[Key, list[tuple[Box, Tensor]]]
"""What it holds of each."""
Wanted = Callable[[Key], Held]
"""What it is to hold, asked for when it comes, so that it need not be there before."""


def exchange(staged: State, wanted: Wanted, source: Layout, target: Layout, group: dist.ProcessGroup | None = None) -> int:
    """Fill what is `wanted` in the target layout with what all ranks have staged from the source's, which is consumed.

    Every rank of the group (by default, all) calls it. Returns the bytes that this rank received.
    """
    rank, received_bytes = dist.get_rank(group), 0
    plan = transfers(source, target)
    fullest_bytes = max(sum(holding.nbytes for holding in holdings) for holdings in (*source, *target))
    for keys, moving in rounds(plan, evenly(source, target), min(ROUND_BYTES, int(fullest_bytes * ROUND_SHARE))):
        outgoing = {peer: [one for one in moving if one.sender == rank and one.receiver == peer] for peer in range(len(target))}
        incoming = {peer: [one for one in moving if one.receiver == rank and one.sender == peer] for peer in range(len(source))}
        messages = {peer: packed(staged, some) for peer, some in outgoing.items() if some}
        buffers = {peer: torch.empty(sum(one.nbytes for one in some), dtype=torch.uint8) for peer, some in incoming.items() if some}
        _swap(messages, buffers, group)
        del messages
        for peer, buffer in buffers.items():
            unpack(wanted, incoming[peer], buffer)
            received_bytes += len(buffer)
        for key in keys:
            keep(staged.pop(key, []), wanted(key))
    return received_bytes


def packed(staged: State, moving: Sequence[Transfer]) -> Tensor:
    """The bytes of all these boxes, one behind the other."""
    return torch.cat([find(staged[one.key], one.box).contiguous().view(-1).view(torch.uint8) for one in moving])


def unpack(wanted: Wanted, moving: Sequence[Transfer], message: Tensor) -> None:
    """Put the boxes of a message where they belong; twice where a rank holds two copies."""
    for one, part in zip(moving, message.split([one.nbytes for one in moving]), strict=True):
        for box, tensor in wanted(one.key):
            if inside(one.box, box):
                place = tensor[index(one.box, box)]
                # Cloned, because a tensor's elements lie at multiples of their size, and a message's need not.
                place.copy_(part.clone().view(place.dtype).view(place.shape))


def keep(staged: Held, wanted: Held) -> None:
    """Copy what this rank holds already."""
    for box, tensor in wanted:
        for there, found in staged:
            both = common(box, there)
            if both is not None:
                tensor[index(both, box)].copy_(found[index(both, there)])


def find(held: Held, box: Box) -> Tensor:
    """The elements of a box, which lies within one of those held."""
    return next(tensor[index(box, there)] for there, tensor in held if inside(box, there))


def _swap(messages: dict[int, Tensor], buffers: dict[int, Tensor], group: dist.ProcessGroup | None) -> None:
    """Send to each peer and receive from each, all at once."""
    sends = [dist.P2POp(dist.isend, message, group=group, group_peer=peer) for peer, message in messages.items()]
    receives = [dist.P2POp(dist.irecv, buffer, group=group, group_peer=peer) for peer, buffer in buffers.items()]
    if sends or receives:
        for work in dist.batch_isend_irecv([*sends, *receives]):
            work.wait()
