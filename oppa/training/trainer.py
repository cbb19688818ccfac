"""Trains for a number of optimizer steps under one configuration, and measures each.

One small collective ends every step. It gathers three numbers of each rank, which is all that ranks need to agree on: the loss
(known where the last stage is), the peak memory, and rank 0's wish to stop. It also makes the step's end the same for all.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.training.batches import Batch
from oppa.training.memory import PeakMemory, exact_pages, memory_limit
from oppa.training.mesh import Mesh
from oppa.training.sources import source_of
from oppa.trials.wire import Measurement, TrialSpec


class Trainable(Protocol):
    """What one rank holds of the model, whichever framework steps it."""

    def step(self, batch: Batch) -> Tensor | None:
        """One optimizer step on this replica's share of the global batch; its mean loss, where the last stage is."""


Build = Callable[[TrialSpec, Mesh], Trainable]


def train(build: Build, spec: TrialSpec, mesh: Mesh, stop_requested: Callable[[], bool]) -> Iterator[Measurement]:
    """Yield each step's measurement, the same on every rank but for its clock; rank 0's `stop_requested` ends it for all.

    Raises:
        InputError: if the model or the configuration is beyond what `build` can make.
    """
    peak = PeakMemory(mesh.device)
    for step, (begin_s, loss) in enumerate(_steps(build, spec, mesh, peak)):
        mean_loss, memory_bytes, stop = _agree(mesh, loss, peak.bytes(), stop_requested)
        yield Measurement(step=step, step_time_s=time.monotonic() - begin_s, memory_bytes=memory_bytes, loss=mean_loss)
        if stop:
            return


def _steps(build: Build, spec: TrialSpec, mesh: Mesh, peak: PeakMemory) -> Iterator[tuple[float, Tensor | None]]:
    """When each step began, and this rank's loss.

    The warm-up, which counts as the first step, is two optimizer steps: one whose memory is measured, under a loose limit; and one, now
    that all that stays is there, in which the limit is as hard as an accelerator's. On a CPU the timed steps run without one.
    """
    source = source_of(spec)
    share = spec.configuration.global_batch // mesh.dp.size
    sequences = range(mesh.dp.index * share, (mesh.dp.index + 1) * share)
    limit_bytes = spec.cluster.usable_bytes if spec.memory_limit_enforced else None
    with exact_pages(mesh.device):
        with peak.watch(), memory_limit(limit_bytes, mesh.device, room=True):
            replica = build(spec, mesh)
            first = time.monotonic(), replica.step(source.batch(0, sequences).to(mesh.device))
        with memory_limit(limit_bytes, mesh.device, held_bytes=peak.held_bytes):
            replica.step(source.batch(1, sequences).to(mesh.device))
    yield first
    for step in range(1, spec.steps):
        yield time.monotonic(), replica.step(source.batch(step + 1, sequences).to(mesh.device))


def _agree(mesh: Mesh, loss: Tensor | None, peak_bytes: int, stop_requested: Callable[[], bool]) -> tuple[float, int, bool]:
    """Mean loss over the global batch, largest peak of any rank, and whether to stop."""
    stop = mesh.rank == 0 and stop_requested()
    mine = torch.tensor([float(peak_bytes), float(stop), 0.0], dtype=torch.float64, device=mesh.device)
    if loss is not None and mesh.tp.index == 0:
        mine[2] = loss / mesh.dp.size
    everyones = mine.new_empty(mesh.world * len(mine))
    dist.all_gather_single(everyones, mine)
    peaks, stops, losses = everyones.view(mesh.world, -1).cpu().unbind(1)
    return float(losses.sum()), int(peaks.max()), bool(stops[0])
