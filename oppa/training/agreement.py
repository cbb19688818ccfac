"""What all ranks tell each other at the end of a step, at once: each time that ranks wait for each other costs more than these numbers."""

import dataclasses
import math

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.protocol.worker import WorkerState
from oppa.training.mesh import Mesh
from oppa.training.step import Order
from oppa.training.worker import decoded, encoded

Share = tuple[int, int, int]
"""Of a replica: its first sample, the one behind its last, and a checksum of what it was shown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """By one rank."""

    loss: Tensor | None
    """Of its replica, on ranks that have it."""
    share: Share
    measured: Tensor
    """Of gradients; float64, as long on every rank."""
    order: Order | None
    """Counts on rank 0."""
    worker: WorkerState | None
    """On all ranks, or on none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The same on all ranks."""

    loss: float
    """The mean."""
    shares: tuple[Share, ...]
    measured: Tensor
    """The sum; on the CPU."""
    order: Order | None
    workers: tuple[WorkerState, ...]
    """By rank."""


def agree(mesh: Mesh, said: Said) -> Agreed:
    """Tell and hear; every rank calls it."""
    text = said.order.to_json().encode() if said.order is not None and mesh.rank == 0 else b""
    own_loss = float(said.loss) / mesh.dp.size if said.loss is not None and mesh.tp.index == 0 else 0.0
    told = torch.tensor([own_loss, *said.share, len(text)], dtype=torch.float64, device=mesh.device)
    mine = torch.cat((told, said.measured, told.new_tensor(encoded(said.worker) if said.worker else [])))
    everyones = mine.new_empty(mesh.world * len(mine))
    dist.all_gather_single(everyones, mine)
    rows = everyones.view(mesh.world, -1).cpu()
    behind = len(told) + len(said.measured)
    losses, *columns = rows[:, : len(told)].unbind(1)
    shares = sorted({(int(start), int(stop), int(shown)) for start, stop, shown in zip(*columns[:3], strict=True)})
    assert len(shares) == mesh.dp.size, f"ranks of a replica were shown different samples: {shares}"
    length = int(columns[3][0])
    return Agreed(
        loss=math.fsum(losses.tolist()),
        shares=tuple(shares),
        measured=rows[:, len(told) : behind].sum(0),
        order=_heard(mesh, text, length) if length else None,
        workers=tuple(decoded(row) for row in rows[:, behind:].tolist()) if said.worker else (),
    )


def _heard(mesh: Mesh, text: bytes, length: int) -> Order:
    """Rank 0's order on every rank."""
    letters = torch.zeros(length, dtype=torch.uint8, device=mesh.device)
    if text:
        letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(letters, 0)
    return Order.from_json(bytes(letters.cpu().tolist()).decode())
