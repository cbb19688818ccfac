"""Assign ranks to data, tensor and pipeline parallelism, and create their process groups.

The order of ranks is that of Megatron-LM everywhere: tensor parallel varies fastest, then data parallel, then pipeline parallel.

    rank = (pp_index * dp + dp_index) * tp + tp_index

Tensor-parallel peers, which communicate most, are therefore neighbours on a host. Pipeline stages, which communicate least, are furthest
apart. A mixture's experts are spread over `ep` consecutive data-parallel ranks; each expert has dp / ep replicas.
"""

import contextlib
import dataclasses
import datetime
import functools
import os
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as meet

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.training import COLLECTIVE_TIMEOUT_S

_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclasses.dataclass(frozen=True, slots=True)
class MeshAxis:
    """This rank's peers in one kind of parallelism, and its index among them; without peers, there is no group."""

    ranks: tuple[int, ...]
    index: int
    group: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        """Return the degree of parallelism."""
        return len(self.ranks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's position in the job and its process groups; `expert_dp` has the ranks that hold the same experts.

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
        EnvironmentLackingError: if this rank's CUDA device does not exist.
    """
    if world != configuration.devices:
        raise InputError(f"`dp * tp * pp = {configuration.devices}`, but {world} ranks were started", hint="start one rank per device")
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
        raise InputError(f"`dp * tp * pp = {configuration.devices}`, but the job has {mesh.world} ranks", hint="keep the number of devices")
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
    dp, tp, pp = (axis(ranks) for ranks in peers(configuration, rank))
    ep, expert_dp = _expert_axes(dp, configuration.ep, rank, axis)
    axes = {"dp": dp, "tp": tp, "pp": pp, "ep": ep, "expert_dp": expert_dp}
    return Mesh(store=store, layout=layout, rank=rank, world=world, device=device, timeout=timeout, **axes)


def peers(configuration: Configuration, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the data-, tensor- and pipeline-parallel peers of a rank; each includes `rank` itself, in order."""
    dp, tp, pp = configuration.dp, configuration.tp, configuration.pp
    stage, rest = divmod(rank, dp * tp)
    replica, part = divmod(rest, tp)
    return (
        tuple((stage * dp + i) * tp + part for i in range(dp)),
        tuple((stage * dp + replica) * tp + i for i in range(tp)),
        tuple((i * dp + replica) * tp + part for i in range(pp)),
    )


def _expert_axes(dp: MeshAxis, ep: int, rank: int, axis: Callable[[tuple[int, ...]], MeshAxis]) -> tuple[MeshAxis, MeshAxis]:
    """Return the axis of data-parallel ranks over which the experts are spread, and that of ranks that hold the same experts."""
    if ep == 1:
        return MeshAxis((rank,), 0, None), dp
    start = dp.index // ep * ep
    return axis(dp.ranks[start : start + ep]), axis(dp.ranks[dp.index % ep :: ep])


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
