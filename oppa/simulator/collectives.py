"""Predict the seconds of collectives: ring and tree algorithms over a group's links, as NCCL runs them.

Notation:
    n      ranks of the group; B bandwidth of its narrowest link; a latency of a step over its slowest link
    bytes  size of the whole vector: each rank's tensor in an all-reduce, all ranks' tensors together in an all-gather or a reduce-scatter

A group of one rank needs no time. The host's time to start a collective is not included; the caller accounts for it.
"""

import math

from oppa.simulator.topology import Crossing, RankGroup


def all_reduce_s(group: RankGroup, bytes_: float) -> float:
    """Return the seconds of an all-reduce by a ring, in 2 (n - 1) steps of bytes / n each, or by a faster double binary tree."""
    n = group.size
    if n == 1:
        return 0.0
    ring = 2 * (n - 1) * group.latency_s + 2 * (n - 1) / n * bytes_ / group.bandwidth_bytes_per_s
    tree = 2 * _depth_s(group) + 2 * bytes_ / group.bandwidth_bytes_per_s
    return min(ring, tree)


def reduce_scatter_s(group: RankGroup, bytes_: float) -> float:
    """Return the seconds of a reduce-scatter: a ring of n - 1 steps of bytes / n each."""
    n = group.size
    return (n - 1) * group.latency_s + (n - 1) / n * bytes_ / group.bandwidth_bytes_per_s if n > 1 else 0.0


def all_gather_s(group: RankGroup, bytes_: float) -> float:
    """Return the seconds of an all-gather, which is a reduce-scatter in reverse."""
    return reduce_scatter_s(group, bytes_)


def all_to_all_s(group: RankGroup, bytes_: float) -> float:
    """Return the seconds of an all-to-all, in which each rank sends 1/n of its `bytes_` to every rank.

    The link whose ports take longest determines the time.
    """
    n = group.size
    outside = (bytes_ * (n - crossing.members_below) / n / crossing.port_bytes_per_s for crossing in group.crossings)
    return group.latency_s + max(outside) if n > 1 else 0.0


def send_s(hop: Crossing, bytes_: float) -> float:
    """Return the seconds to send `bytes_` bytes from one rank to another."""
    return hop.latency_s + bytes_ / hop.bandwidth_bytes_per_s


def _depth_s(group: RankGroup) -> float:
    """Return the latency from a leaf to the root of a tree, in seconds: a chain within the nearest islands, a binary tree above."""
    seconds, below = 0.0, 1
    for crossing in group.crossings:
        seconds += crossing.latency_s * (math.ceil(math.log2(max(crossing.members_below // below, 1))) if below > 1 else 0)
        below = crossing.members_below
    last = group.crossings[-1]
    return (
        seconds
        + last.latency_s * math.ceil(math.log2(group.size / last.members_below))
        + (last.members_below - 1) * group.crossings[0].latency_s
    )
