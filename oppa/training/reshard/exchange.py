"""Move the staged training state between ranks into the tensors of a new layout, in rounds.

A rank drops staged tensors as soon as all ranks that need them have them. In the order of tensors, no rank receives faster than it
releases. A change of layout therefore takes no more memory than the larger layout (`tests/training/test_reshard_memory.py`).
"""

import collections
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.training.model.tensor_slices import Box, common, index, inside
from oppa.training.reshard.shards import Layout, TensorKey
from oppa.training.reshard.transfers import Transfer, evenly, rounds, transfers

ROUND_BYTES, ROUND_SHARE = 32 << 20, 1 / 8
"""Limits of a round: bytes moved over all ranks, and their share of what the fullest rank holds. Buffers take at most twice that."""

Held = Sequence[tuple[Box, Tensor]]
"""Boxes of one whole tensor that a rank holds, with the tensors of their elements."""
State = dict[TensorKey, list[tuple[Box, Tensor]]]
"""Boxes that a rank holds of each whole tensor."""
RequestedShards = Callable[[TensorKey], Held]
"""Returns the boxes of one whole tensor that a rank will hold, with the tensors to fill, which may be allocated in the call."""


def exchange(staged: State, wanted: RequestedShards, source: Layout, target: Layout, group: dist.ProcessGroup | None = None) -> int:
    """Fill the tensors of the target layout from the state that all ranks have staged in the source layout.

    Every rank of the group calls it; the staged state is consumed.

    Args:
        staged: State of this rank in the source layout, in host memory.
        wanted: Tensors of this rank in the target layout.
        source: Source layout.
        target: Target layout.
        group: Group of all ranks; the default group if None.

    Returns:
        Bytes that this rank received.
    """
    rank, received_bytes = dist.get_rank(group), 0
    plan = transfers(source, target)
    fullest_bytes = max(sum(shard.nbytes for shard in shards) for shards in (*source, *target))
    for keys, moving in rounds(plan, evenly(source, target), min(ROUND_BYTES, int(fullest_bytes * ROUND_SHARE))):
        outgoing, incoming = (collections.defaultdict[int, list[Transfer]](list) for _ in range(2))
        for one in moving:  # never from a rank to itself
            if one.sender == rank:
                outgoing[one.receiver].append(one)
            elif one.receiver == rank:
                incoming[one.sender].append(one)
        messages = {peer: packed(staged, some) for peer, some in outgoing.items()}
        buffers = {peer: torch.empty(sum(one.nbytes for one in some), dtype=torch.uint8) for peer, some in incoming.items()}
        _swap(messages, buffers, group)
        del messages
        for peer, buffer in buffers.items():
            unpack(wanted, incoming[peer], buffer)
            received_bytes += len(buffer)
        for key in keys:
            keep(staged.pop(key, []), wanted(key))
    return received_bytes


def packed(staged: State, moving: Sequence[Transfer]) -> Tensor:
    """Return the concatenated bytes of all these boxes."""
    return torch.cat([find(staged[one.key], one.box).contiguous().view(-1).view(torch.uint8) for one in moving])


def unpack(wanted: RequestedShards, moving: Sequence[Transfer], message: Tensor) -> None:
    """Copy the boxes of a message into the wanted tensors; into both, if a rank holds two copies."""
    for one, part in zip(moving, message.split([one.nbytes for one in moving]), strict=True):
        for box, tensor in wanted(one.key):
            if inside(one.box, box):
                place = tensor[index(one.box, box)]
                # Cloned, because a tensor's elements are aligned to their size, and those of a message need not be.
                place.copy_(part.clone().view(place.dtype).view(place.shape))


def keep(staged: Held, wanted: Held) -> None:
    """Copy the elements that this rank has staged itself into its wanted tensors."""
    for box, tensor in wanted:
        for there, found in staged:
            both = common(box, there)
            if both is not None:
                tensor[index(both, box)].copy_(found[index(both, there)])


def find(held: Held, box: Box) -> Tensor:
    """Return the elements of a box, which is inside one of the boxes held."""
    return next(tensor[index(box, there)] for there, tensor in held if inside(box, there))


def _swap(messages: dict[int, Tensor], buffers: dict[int, Tensor], group: dist.ProcessGroup | None) -> None:
    """Send the messages to their peers and receive the buffers from theirs, all at once."""
    sends = [dist.P2POp(dist.isend, message, group=group, group_peer=peer) for peer, message in messages.items()]
    receives = [dist.P2POp(dist.irecv, buffer, group=group, group_peer=peer) for peer, buffer in buffers.items()]
    if sends or receives:
        for work in dist.batch_isend_irecv([*sends, *receives]):
            work.wait()
