"""Exchange the numbers at the end of a step in one collective, because a synchronisation of ranks costs more than their transfer."""

import dataclasses
import math

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.protocol.worker import WorkerState
from oppa.training.parallel.mesh import Mesh
from oppa.training.run.step import Directive
from oppa.training.statistics.worker_metrics import decoded, encoded

Share = tuple[int, int, int]
"""A replica's first sample, the one after its last, and the checksum of its inputs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Holds the report of one rank."""

    loss: Tensor | None
    """Mean loss of its replica; None on ranks without the last stage."""
    share: Share
    measured: Tensor
    """Gradient measurements (`Replica.measured`) in float64, of equal length on every rank."""
    directive: Directive | None
    """Directive; only that of rank 0 counts."""
    worker: WorkerState | None
    """State of the worker; set on all ranks or on none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """Combines the reports of all ranks; it is the same on every rank."""

    loss: float
    """Mean loss over the replicas."""
    shares: tuple[Share, ...]
    measured: Tensor
    """Sum of the measurements over all ranks, on the CPU."""
    directive: Directive | None
    workers: tuple[WorkerState, ...]
    """One value per rank; empty if no rank reports one."""


def agree(mesh: Mesh, report: RankReport) -> Consensus:
    """Combine the reports of all ranks; every rank calls it. A directive of rank 0 takes one more broadcast."""
    text = report.directive.to_json().encode() if report.directive is not None and mesh.rank == 0 else b""
    own_loss = float(report.loss) / mesh.replicas.size if report.loss is not None and mesh.tp.index == 0 else 0.0
    own_facts = torch.tensor([own_loss, *report.share, len(text)], dtype=torch.float64, device=mesh.device)
    mine = torch.cat((own_facts, report.measured, own_facts.new_tensor(encoded(report.worker) if report.worker else [])))
    everyones = mine.new_empty(mesh.world * len(mine))
    dist.all_gather_single(everyones, mine)
    rows = everyones.view(mesh.world, -1).cpu()
    facts_end = len(own_facts) + len(report.measured)
    losses, *columns = rows[:, : len(own_facts)].unbind(1)
    shares = sorted({(int(start), int(stop), int(shown)) for start, stop, shown in zip(*columns[:3], strict=True)})
    assert len(shares) == mesh.dp.size, f"ranks of a replica read different samples: {shares}"
    length = int(columns[3][0])
    return Consensus(
        loss=math.fsum(losses.tolist()),
        shares=tuple(shares),
        measured=rows[:, len(own_facts) : facts_end].sum(0),
        directive=_heard(mesh, text, length) if length else None,
        workers=tuple(decoded(row) for row in rows[:, facts_end:].tolist()) if report.worker else (),
    )


def _heard(mesh: Mesh, text: bytes, length: int) -> Directive:
    """Broadcast rank 0's directive, a text of `length` bytes, and return it on every rank."""
    letters = torch.zeros(length, dtype=torch.uint8, device=mesh.device)
    if text:
        letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(letters, 0)
    return Directive.from_json(bytes(letters.cpu().tolist()).decode())
