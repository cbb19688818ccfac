"""Assign ranks to data, context, tensor and pipeline parallelism, and create their process groups.

The order of ranks is that of Megatron-LM everywhere: tensor parallel varies fastest, then context, data and pipeline parallel.

    rank = ((pp_index * dp + dp_index) * cp + cp_index) * tp + tp_index

Tensor-parallel peers, which communicate most, are therefore neighbours on a host. Pipeline stages, which communicate least, are furthest
apart. The dp * cp ranks that train the same parameters are replicas, whether they see other sequences or other parts of them. A mixture's
experts are spread over `ep` data-parallel ranks; each expert has dp * cp / ep replicas.
"""

import contextlib
import dataclasses
import datetime
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as meet

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.training import COLLECTIVE_TIMEOUT_S
from oppa.training.parallel.extra_parameters import context_parallel, shards_of
from oppa.training.torch_internals import forget_shardings, require_tested

_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclasses.dataclass(frozen=True, slots=True)
class MeshAxis:
    """Holds this rank's peers in one kind of parallelism, and its index among them; without peers, there is no group."""

    ranks: tuple[int, ...]
    index: int
    group: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        """Return the degree of parallelism."""
        return len(self.ranks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Holds this rank's position in the job and its process groups.

    `replicas` has the ranks that train the same parameters. ZeRO shards their state over `shard`; `copies` has the ranks with equal shards.
    `expert_dp` has the ranks that hold the same experts.

    All ranks share `store`. The process groups of each layout use it under the layout's number as prefix.
    """

    store: Store
    layout: int
    rank: int
    world: int
    device: torch.device
    timeout: datetime.timedelta
    """Longest time that ranks wait for each other."""
    dp: MeshAxis
    tp: MeshAxis
    pp: MeshAxis
    cp: MeshAxis
    replicas: MeshAxis
    shard: MeshAxis
    copies: MeshAxis
    ep: MeshAxis
    expert_dp: MeshAxis


@contextlib.contextmanager
def open_mesh(
    configuration: Configuration, cluster: Cluster, *, rank: int, world: int, rendezvous: str, timeout_s: float = COLLECTIVE_TIMEOUT_S
) -> Iterator[Mesh]:
    """Join the job's process groups, and destroy them at the end.

    Args:
        configuration: Configuration with the degrees of parallelism.
        cluster: Cluster with the kind of device.
        rank: Number of this rank.
        world: Number of ranks.
        rendezvous: URL at which all ranks meet, as torch's `init_method`.
        timeout_s: Longest time that ranks wait for each other, at the rendezvous and later.

    Raises:
        InputError: if the configuration has another number of devices than there are ranks.
        EnvironmentLackingError: if this rank's CUDA device does not exist, or torch is not a version that was tested.
    """
    require_tested()
    if world != configuration.devices:
        raise InputError(f"`{configuration.id}` is for {configuration.devices} ranks, not {world}", hint="start one rank per device")
    device = _device(cluster, rank)
    timeout = datetime.timedelta(seconds=timeout_s)
    with _gloo_on_loopback() if cluster.hosts == 1 and sys.platform == "linux" else contextlib.nullcontext():
        store, *_ = next(meet(rendezvous, rank, world, timeout=timeout))
        store.set_timeout(timeout)
        try:
            yield _joined(configuration, store, 0, device=device, rank=rank, world=world, timeout=timeout)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextlib.contextmanager
def _gloo_on_loopback() -> Iterator[None]:
    """Name the loopback interface, unless the user has named one, for groups that are made within the context.

    gloo would otherwise resolve the host's own name, which may be unknown or belong to a slow interface.
    """
    given = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = given or "lo"
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(_INTERFACE, None)


def regrouped(mesh: Mesh, configuration: Configuration) -> Mesh:
    """Return the mesh of the same ranks in another layout, and destroy the present groups; every rank calls it between two steps."""
    if mesh.world != configuration.devices:
        raise InputError(f"`{configuration.id}` is for {configuration.devices} ranks, not {mesh.world}", hint="keep the number of devices")
    forget_shardings()
    if dist.is_initialized():  # a rank that failed to build its part of the layout has destroyed its groups already
        dist.destroy_process_group()
    return _joined(configuration, mesh.store, mesh.layout + 1, device=mesh.device, rank=mesh.rank, world=mesh.world, timeout=mesh.timeout)


def _joined(
    configuration: Configuration, store: Store, layout: int, *, device: torch.device, rank: int, world: int, timeout: datetime.timedelta
) -> Mesh:
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"layout {layout}", store),
        rank=rank,
        world_size=world,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    axis = functools.partial(_axis, rank=rank, world=world, timeout=timeout)
    own = peers(configuration, rank)
    dp, tp, pp, cp = axis(own.dp), axis(own.tp), axis(own.pp), axis(own.cp)
    replicas = dp if cp.size == 1 else cp if dp.size == 1 else axis(own.replicas)
    copies = axis(own.copies)
    shard = replicas if copies.size == 1 else axis(own.shard)
    ep, expert_dp = _expert_axes(dp, replicas, configuration.ep, rank, axis)
    axes = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "replicas": replicas,
        "shard": shard,
        "copies": copies,
        "ep": ep,
        "expert_dp": expert_dp,
    }
    return Mesh(store=store, layout=layout, rank=rank, world=world, device=device, timeout=timeout, **axes)


class Peers(NamedTuple):
    """Lists the peers of a rank in each kind of parallelism; each includes the rank itself, in order."""

    dp: tuple[int, ...]
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    cp: tuple[int, ...]
    replicas: tuple[int, ...]
    """Ranks that train the same parameters: those of dp and cp, with cp varying faster."""
    shard: tuple[int, ...]
    """Consecutive replicas over which ZeRO shards the training state."""
    copies: tuple[int, ...]
    """Replicas that hold the same shards."""


def peers(configuration: Configuration, rank: int) -> Peers:
    """Return the peers of a rank."""
    dp, tp, pp, cp = configuration.dp, configuration.tp, configuration.pp, context_parallel(configuration)
    rest, part = divmod(rank, tp)
    rest, sequence_part = divmod(rest, cp)
    stage, replica = divmod(rest, dp)

    def number(stage: int, replica: int, sequence_part: int, part: int) -> int:
        return ((stage * dp + replica) * cp + sequence_part) * tp + part

    replicas = tuple(number(stage, i, j, part) for i in range(dp) for j in range(cp))
    shards, own = shards_of(configuration), replicas.index(rank)
    return Peers(
        dp=tuple(number(stage, i, sequence_part, part) for i in range(dp)),
        tp=tuple(number(stage, replica, sequence_part, i) for i in range(tp)),
        pp=tuple(number(i, replica, sequence_part, part) for i in range(pp)),
        cp=tuple(number(stage, replica, i, part) for i in range(cp)),
        replicas=replicas,
        shard=replicas[own // shards * shards :][:shards],
        copies=replicas[own % shards :: shards],
    )


def _expert_axes(
    dp: MeshAxis, replicas: MeshAxis, ep: int, rank: int, axis: Callable[[tuple[int, ...]], MeshAxis]
) -> tuple[MeshAxis, MeshAxis]:
    """Return the axis of data-parallel ranks over which the experts are spread, and that of ranks that hold the same experts."""
    if ep == 1:
        return MeshAxis((rank,), 0, None), replicas
    start, cp = dp.index // ep * ep, replicas.size // dp.size
    alike = tuple(other for i, other in enumerate(replicas.ranks) if i // cp % ep == dp.index % ep)
    return axis(dp.ranks[start : start + ep]), axis(alike)


def _axis(ranks: tuple[int, ...], *, rank: int, world: int, timeout: datetime.timedelta) -> MeshAxis:
    if len(ranks) == 1:
        return MeshAxis(ranks, 0, None)
    # Each rank creates only its own groups: in a 2 x 2 x 2 job 3 of them, not 12.
    group = dist.group.WORLD if len(ranks) == world else dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)
    return MeshAxis(ranks, ranks.index(rank), group)


def _device(cluster: Cluster, rank: int) -> torch.device:
    if not cluster.on_cuda:
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", rank % cluster.devices_per_host))
    if index >= torch.cuda.device_count():
        raise EnvironmentLackingError(
            f"rank {rank} needs CUDA device {index}, but this host has {torch.cuda.device_count()}",
            hint='lower `devices_per_host`, or set `device = "CPU"`',
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
