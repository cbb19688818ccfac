"""Predict the seconds of collective operations, within a host and across hosts.

The tensor-parallel index of a rank varies fastest, then the data-parallel, then the pipeline's (oppa.training.parallel.mesh). A group whose
members are `stride` ranks apart therefore has devices_per_host / stride of them on each host. If whole groups do not fill the hosts (3
hosts of 4 devices with groups of 3), some groups span two hosts. The other groups wait for them. Among the hosts of a rack that one network
connects closely, as in NVL72, jobs take only as many as whole groups fill.

Notation (n rows):
    members    ranks of the group; k of them per host, on H hosts
    payload    bytes of the whole tensor: the result of an all-gather on every member, or the input of a reduce-scatter
"""

import dataclasses

import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.workload import DeviceFacts


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CollectiveGroup:
    """Describes a group of ranks that communicate; all fields have shape (n,)."""

    members: Tensor
    per_host: Tensor
    hosts: Tensor
    paired: Tensor = dataclasses.field(default_factory=lambda: torch.tensor(False))
    """True where all members are among neighbours with a closer link."""

    @classmethod
    def of(cls, members: Tensor, stride: Tensor, machine: DeviceFacts, devices: Tensor) -> "CollectiveGroup":
        """Return the group of `members` ranks that are `stride` apart, among all `devices` of a job."""
        host, block = machine.devices_per_host, members * stride  # `stride` interleaved groups occupy a block of consecutive ranks
        cut = (devices > host) & (block < host) & (host % block > 0) & (machine.several_hosts == 0)
        per_host = torch.where(cut, (members / 2).ceil(), torch.minimum(members, (host / stride).floor().clamp_min(1)))
        return cls(members, per_host, (members / per_host).ceil(), block <= machine.pair_devices)


def gather_time(group: CollectiveGroup, payload: Tensor, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the seconds of a ring all-gather or reduce-scatter of `payload` bytes, shape (n,); 0 for a group of one.

    Within a host every member receives (k - 1) / k of the payload over the host's links. Between hosts (H - 1) / H of the payload
    arrives through the k members' shares of the network. Each hop of the ring adds its latency.
    """
    intra = payload * (group.per_host - 1) / group.per_host / _within(group, machine, c)
    inter = payload * (group.hosts - 1) / group.hosts / (group.per_host * machine.inter_bandwidth * c["inter_efficiency"])
    return torch.where(group.members > 1, c["operation_s"] + hop_time(group, machine, c) + intra + inter, 0.0)


def all_to_all_time(group: CollectiveGroup, payload: Tensor, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the seconds in which each member sends a part of its own `payload` bytes to every other, shape (n,).

    Each of a host's k members keeps 1 / members of its payload. It sends (k - 1) / members within the host, and the rest through its own
    share of the network.
    """
    intra = payload * (group.per_host - 1) / group.members / _within(group, machine, c)
    inter = payload * (group.members - group.per_host) / group.members / (machine.inter_bandwidth * c["all_to_all_efficiency"])
    return torch.where(group.members > 1, c["operation_s"] + hop_time(group, machine, c) + intra + inter, 0.0)


def deduplicated_time(group: CollectiveGroup, token: Tensor, copies: Tensor, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the seconds in which each member sends every token once to each host and member that has experts for it, shape (n,).

    A token's `copies` experts are anywhere in the group with the same probability. Of m places, it then needs m (1 - (1 - 1/m)^copies).
    What arrives at a host goes on to its members meanwhile (DeepEP, HybridEP).

    Args:
        token: Bytes of all tokens of a member, each once.
        copies: Experts of each token.
    """
    hosts, members = (_reached(places, copies) for places in (group.hosts, group.members))
    intra = token * members / _within(group, machine, c) * (group.per_host > 1)
    inter = token * hosts / (machine.inter_bandwidth * c["all_to_all_efficiency"])
    return torch.where(group.members > 1, c["operation_s"] + hop_time(group, machine, c) + torch.maximum(intra, inter), 0.0)


def _reached(places: Tensor, copies: Tensor) -> Tensor:
    """Return how many other places than its own a token is expected to go to, shape (n,)."""
    return (places - 1) * (1 - (1 - 1 / places) ** copies)


def all_reduce_time(group: CollectiveGroup, payload: Tensor, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the seconds of an all-reduce, shape (n,).

    It is a reduce-scatter and an all-gather around the ring. Two trees replace the ring's hops if theirs take less time, as collective
    libraries choose.
    """
    both = 2 * gather_time(group, payload, machine, c)
    tree = 2 * (_latency_within(group, machine, c) * _log2(group.per_host) + _network_latency(machine, c) * _log2(group.hosts))
    saved = (2 * hop_time(group, machine, c) - tree).clamp_min(0)
    return torch.where(group.members > 1, both - c["operation_s"] - saved, 0.0)


def hop_time(group: CollectiveGroup, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the seconds of latency around the ring, shape (n,): one hop enters each host, the others stay within one."""
    crossing = torch.where(group.hosts > 1, group.hosts, 0.0)
    within = (group.members - 1 - crossing).clamp_min(0)
    return _network_latency(machine, c) * crossing + _latency_within(group, machine, c) * within


def transfer_time(payload: Tensor, crosses_hosts: Tensor, machine: DeviceFacts, c: Coefficients, *, alone: Tensor | float = 1.0) -> Tensor:
    """Return the seconds to send `payload` bytes from one rank to another, shape (n,) (OPPA eq. 17).

    Args:
        alone: The multiple of its share of the network that a transfer between hosts can use.
    """
    intra = c["latency"] * machine.intra_latency + payload / (machine.intra_bandwidth * c["intra_efficiency"])
    inter = _network_latency(machine, c) + payload / (alone * machine.inter_bandwidth * c["inter_efficiency"])
    return c["operation_s"] + torch.where(crosses_hosts, inter, intra)


def _network_latency(machine: DeviceFacts, c: Coefficients) -> Tensor:
    return c["latency"] * c["network_latency"] * machine.inter_latency


def _latency_within(group: CollectiveGroup, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the seconds of a hop among the members on one host, shape (n,)."""
    return c["latency"] * torch.where(group.paired, machine.pair_latency, machine.intra_latency)


def _within(group: CollectiveGroup, machine: DeviceFacts, c: Coefficients) -> Tensor:
    """Return the bytes per second among the members on one host, shape (n,)."""
    return torch.where(group.paired, machine.pair_bandwidth, machine.intra_bandwidth) * c["intra_efficiency"]


def _log2(count: Tensor) -> Tensor:
    return count.log2().ceil()
