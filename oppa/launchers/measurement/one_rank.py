"""Measure as one rank of several, or as the only one: kernels first, then collectives. Rank 0 returns all figures."""

import contextlib
import datetime
import os
import platform
import socket
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from oppa.errors import EnvironmentLackingError
from oppa.launchers.measurement.collectives import collective_figures, link_figures, of_each
from oppa.launchers.measurement.figures import MOST_FIGURES, Figure, HardwareMeasurement, MeasuredNode, MeasurementPlan, joined
from oppa.launchers.measurement.kernels import kernel_figures
from oppa.launchers.measurement.ranks import LaunchedRank
from oppa.problem.detect import physical_memory
from oppa.problem.devices import CPU

PATIENCE_S = 120.0
"""Seconds that a rank waits for the others, besides those of the figures that they measure alone."""
Tell = Callable[[str], None]


def measure_rank(own: LaunchedRank, *, figure_s: float, on_cuda: bool, meeting: str = "env://", tell: Tell) -> HardwareMeasurement | None:
    """Measure together with the other ranks of a launch; return the figures on rank 0, None on the others.

    Args:
        figure_s: Least time of each figure.
        meeting: Where ranks meet, as torch.distributed's `init_method`.
        tell: Receives the name of each step, on rank 0.

    Raises:
        EnvironmentLackingError: the other ranks do not come, or a collective fails.
    """
    device, plan = _device(own, on_cuda=on_cuda), MeasurementPlan.of(on_cuda=on_cuda, figure_s=figure_s)
    quiet: Tell = tell if own.rank == 0 else (lambda _: None)
    quiet(f"waiting for {own.world} ranks" if own.world > 1 else "starting")
    patience = datetime.timedelta(seconds=PATIENCE_S + MOST_FIGURES * figure_s)
    with _meeting(own, meeting, device, patience):
        try:
            hosts = of_each(own.host)
            every = _kernels(own, hosts, device, plan, quiet)
            figures = [*_merged(every), *_collectives(own, hosts, device, plan, quiet)]
            nodes = _nodes(hosts, every, device, plan, quiet) if len(set(hosts)) > 1 else ()
        except RuntimeError as error:
            message = f"rank {own.rank} on host `{own.host}` cannot measure: {str(error).strip().splitlines()[0]}"
            raise EnvironmentLackingError(
                message, hint="check that the hosts reach each other; NCCL_DEBUG=INFO shows NCCL's steps"
            ) from None
    return _measurement(hosts, device, figures, nodes) if own.rank == 0 else None


def _device(own: LaunchedRank, *, on_cuda: bool) -> torch.device:
    if not on_cuda:
        torch.set_num_threads(1)  # a device is one core
        return torch.device("cpu")
    device = torch.device("cuda", own.local % torch.cuda.device_count())  # a launcher may show each rank its own device alone
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def _meeting(own: LaunchedRank, meeting: str, device: torch.device, patience: datetime.timedelta) -> Iterator[None]:
    if own.world == 1:
        yield
        return
    backend, bound = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    try:
        dist.init_process_group(backend, init_method=meeting, rank=own.rank, world_size=own.world, timeout=patience, device_id=bound)
    except (RuntimeError, ValueError) as error:
        message = f"rank {own.rank} of {own.world} cannot connect to the others over {backend}: {str(error).strip().splitlines()[0]}"
        raise EnvironmentLackingError(
            message, hint="check MASTER_ADDR, MASTER_PORT and the network interface, and that every rank was started"
        ) from None
    yield
    dist.destroy_process_group()  # not after an error: it could wait for ranks that ended


def _kernels(own: LaunchedRank, hosts: Sequence[str], device: torch.device, plan: MeasurementPlan, tell: Tell) -> list[list[Figure]]:
    """Return the figures of kernels of each rank; on CPUs one rank of each host measures, as ranks share the memory."""
    tell("matrix products, memory and copies")
    measures = device.type == "cuda" or own.rank == hosts.index(own.host)
    figures = list(kernel_figures(device, plan)) if measures else []
    return of_each(figures)


def _nodes(
    hosts: Sequence[str], every: Sequence[Sequence[Figure]], device: torch.device, plan: MeasurementPlan, tell: Tell
) -> tuple[MeasuredNode, ...]:
    """Return the rates of each host: of its slowest device, and of its link."""
    tell("links of each node")
    names = of_each(os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    links, nodes = link_figures(hosts, device, plan), []
    for host in dict.fromkeys(hosts):
        rates = [figure for at, figures in zip(hosts, every, strict=True) if at == host for figure in figures if figure.work]
        kinds = dict.fromkeys(figure.kind for figure in rates)
        slowest = [min((each for each in rates if each.kind == kind), key=lambda each: each.median) for kind in kinds]
        nodes.append(MeasuredNode(name=names[hosts.index(host)], figures=(*slowest, *([links[host]] if links else []))))
    return tuple(nodes)


def _merged(every: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return one figure for each kind, with the repeats of all ranks."""
    kinds = dict.fromkeys((each.what, each.detail, bool(each.work)) for found in every for each in found)
    return [joined(each for found in every for each in found if (each.what, each.detail, bool(each.work)) == kind) for kind in kinds]


def _collectives(own: LaunchedRank, hosts: Sequence[str], device: torch.device, plan: MeasurementPlan, tell: Tell) -> Iterator[Figure]:
    if own.world == 1:
        return
    tell("collectives")
    for figure in collective_figures(hosts, device, plan):
        tell(f"measured: {figure.what} among {figure.ranks} ranks, {figure.detail}")
        yield figure


def _measurement(
    hosts: Sequence[str], device: torch.device, figures: Sequence[Figure], nodes: tuple[MeasuredNode, ...]
) -> HardwareMeasurement:
    per_host = max(hosts.count(host) for host in hosts)
    on_cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_cuda else None
    return HardwareMeasurement(
        device=properties.name if properties else CPU,
        memory_bytes=properties.total_memory if properties else physical_memory() // per_host,
        hosts=len(set(hosts)),
        devices_per_host=per_host,
        software=f"torch {torch.__version__}, {'NCCL' if on_cuda else 'gloo'}, {platform.system()}",
        figures=tuple(figures),
        nodes=nodes,
    )
