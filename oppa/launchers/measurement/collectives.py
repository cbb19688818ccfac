"""Time collectives and transfers: among the devices of each host, and among one device of each host.

Groups of the same kind run at once, as in training. A group has the ranks of a host, or the ranks with the same index on all hosts. Each
repeat counts as long as its slowest rank took.

Notation: a collective of n ranks moves (n - 1) / n of its payload over each rank's link, and an all-reduce twice that ("bus bandwidth").
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from oppa.launchers.measurement.figures import ALL_GATHER, ALL_REDUCE, HOST, NETWORK, SEND, Figure, MeasurementPlan
from oppa.launchers.measurement.kernels import runs_in, seconds_of, wait

_FIRST = 0
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The all-gather into one tensor; torch 2.13 has renamed it."""
Operation = Callable[[], object]
T = TypeVar("T")


def collective_figures(hosts: Sequence[str], device: torch.device, plan: MeasurementPlan) -> Iterator[Figure]:
    """Yield the figures of collectives on every rank, in the same order.

    Args:
        hosts: The host of each rank.
    """
    rank = dist.get_rank()
    local = [hosts[:each].count(host) for each, host in enumerate(hosts)]
    within = _groups(hosts)
    across = _groups(local)
    pairs = [ranks[:2] for ranks in within if len(ranks) > 2]
    for scope, groups in ((HOST, within), (HOST, pairs), (NETWORK, across)):
        size = len(groups[0]) if groups else 1
        if size > 1 and all(len(ranks) == size for ranks in groups):
            own = _own(groups, rank)
            yield from _collectives(scope, own, size, device, plan)
    yield from _transfers(hosts, local, device, plan)


def link_figures(hosts: Sequence[str], device: torch.device, plan: MeasurementPlan) -> dict[str, Figure]:
    """Return the rate of each host's link on every rank; none for fewer than three hosts, of which none can be identified as slow.

    The hosts form a ring, and the first ranks of neighbours send to each other, all pairs of a round at once. A host has the better of
    its two rates, so that a slow neighbour does not count against it.
    """
    firsts = [hosts.index(host) for host in dict.fromkeys(hosts)]
    if len(firsts) < 3:
        return {}
    ring = list(zip(firsts, [*firsts[1:], firsts[0]], strict=True))
    whole = len(ring) // 2 * 2
    rank, values, found = dist.get_rank(), torch.zeros(plan.large_bytes // 4, device=device), dict[str, Figure]()
    for pairs in (ring[0:whole:2], ring[1:whole:2], ring[whole:]):
        own = next((pair for pair in pairs if rank in pair), None)
        every = _timed_each(_ping(values, own, rank) if own else None, device, plan) if pairs else []
        for first, second in pairs:
            seconds = tuple(each / 2 for each in every[first])
            figure = Figure(what=SEND, detail=NETWORK, ranks=2, payload_bytes=values.nbytes, work=float(values.nbytes), seconds=seconds)
            for host in (hosts[first], hosts[second]):
                found[host] = max(found.get(host, figure), figure, key=lambda each: each.median)
    return found


def _groups(keys: Sequence[object]) -> list[list[int]]:
    """Return the ranks with equal keys, for each key in order of its first rank."""
    return [[rank for rank, key in enumerate(keys) if key == wanted] for wanted in dict.fromkeys(keys)]


def _own(groups: Sequence[Sequence[int]], rank: int) -> "dist.ProcessGroup | None":
    """Create all groups, as torch requires, and return that of this rank; None if it is in none."""
    own = None
    for ranks in groups:
        group = dist.new_group(list(ranks))
        own = group if rank in ranks else own
    return own


def _collectives(
    scope: str, group: "dist.ProcessGroup | None", ranks: int, device: torch.device, plan: MeasurementPlan
) -> Iterator[Figure]:
    for payload in (plan.small_bytes, plan.large_bytes):
        count = payload // 4 // ranks * ranks
        whole, part = torch.zeros(count, device=device), torch.zeros(count // ranks, device=device)
        kinds = (
            (ALL_REDUCE, functools.partial(dist.all_reduce, whole, group=group), 2.0),
            (ALL_GATHER, functools.partial(_gather, whole, part, group=group), 1.0),
        )
        for what, operation, passes in kinds:
            work = passes * (ranks - 1) / ranks * count * 4 if payload == plan.large_bytes else 0.0
            seconds = _timed(operation if group is not None else None, device, plan)
            yield Figure(what=what, detail=scope, ranks=ranks, payload_bytes=count * 4, work=work, seconds=seconds)


def _transfers(hosts: Sequence[str], local: Sequence[int], device: torch.device, plan: MeasurementPlan) -> Iterator[Figure]:
    """Yield transfers from rank 0 to each other rank of its host, and to the first rank of the next host.

    A transfer there and back counts as two.
    """
    rank = dist.get_rank()
    neighbours = [each for each, host in enumerate(hosts) if host == hosts[_FIRST] and each != _FIRST]
    remote = [each for each, host in enumerate(hosts) if host != hosts[_FIRST] and local[each] == 0][:1]
    for other in (*neighbours, *remote):
        for payload in (plan.small_bytes, plan.large_bytes):
            values = torch.zeros(payload // 4, device=device)
            operation = _ping(values, (_FIRST, other), rank) if rank in (_FIRST, other) else None
            seconds = tuple(each / 2 for each in _timed(operation, device, plan))
            scope = NETWORK if other in remote else f"{_FIRST}-{other}"
            work = float(values.nbytes) if payload == plan.large_bytes else 0.0
            yield Figure(what=SEND, detail=scope, ranks=2, payload_bytes=values.nbytes, work=work, seconds=seconds)


def _ping(values: torch.Tensor, pair: tuple[int, int], rank: int) -> Operation:
    first, second = pair

    def there_and_back() -> None:
        if rank == first:
            dist.send(values, dst=second)
            dist.recv(values, src=second)
        else:
            dist.recv(values, src=first)
            dist.send(values, dst=first)

    return there_and_back


def _timed(operation: Operation | None, device: torch.device, plan: MeasurementPlan) -> tuple[float, ...]:
    """Return the seconds of an operation, one mean for each repeat: the slowest rank's; ranks without an operation wait."""
    return tuple(map(max, zip(*_timed_each(operation, device, plan), strict=True)))


def _timed_each(operation: Operation | None, device: torch.device, plan: MeasurementPlan) -> list[list[float]]:
    """Return the seconds of an operation on each rank, one mean for each repeat; 0 on ranks without an operation."""
    _seconds(operation, device, 1)
    runs = runs_in(max(of_each(_seconds(operation, device, 1))), plan)
    return of_each([_seconds(operation, device, runs) for _ in range(plan.repeats)])


def of_each(value: T) -> list[T]:
    """Return the value of each rank; a process that is not in a group is the only rank."""
    if not dist.is_initialized():
        return [value]
    every = [value] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def _seconds(operation: Operation | None, device: torch.device, runs: int) -> float:
    dist.barrier()
    if operation is None:
        wait(device)
        return 0.0
    return seconds_of(operation, device, runs)
