"""Train for a number of optimizer steps under one configuration, and measure each step.

One small collective ends every step. It gathers three numbers from each rank: the loss (on ranks with the last stage), the peak memory,
and rank 0's request to stop. Ranks need to agree on nothing else. The collective also makes the end of the step the same for all.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from oppa.training.data.batches import Batch
from oppa.training.data.sources import source_of
from oppa.training.parallel.mesh import Mesh
from oppa.training.profiler.memory import PeakMemory, exact_pages, memory_limit
from oppa.trials.trial_folder import Measurement, TrialSpec
from oppa.units import format_bytes


class Trainable(Protocol):
    """Trains one rank's part of the model, in any framework."""

    def step(self, batch: Batch) -> Tensor | None:
        """Take one optimizer step on this replica's share of the global batch; return its mean loss on the last stage, else None."""


Build = Callable[[TrialSpec, Mesh], Trainable]


def train(build: Build, spec: TrialSpec, mesh: Mesh, stop_requested: Callable[[], bool]) -> Iterator[Measurement]:
    """Yield the measurement of each step, the same on every rank except for its time; rank 0's `stop_requested` ends it for all.

    Raises:
        InputError: if `build` does not support the model or the configuration.
    """
    peak = PeakMemory(mesh.device)
    for step, (begin_s, loss) in enumerate(_steps(build, spec, mesh, peak)):
        mean_loss, memory_bytes, stop = _agree(mesh, loss, peak.bytes(), stop_requested)
        yield Measurement(step=step, step_time_s=time.monotonic() - begin_s, memory_bytes=memory_bytes, loss=mean_loss)
        if stop:
            return


def _steps(build: Build, spec: TrialSpec, mesh: Mesh, peak: PeakMemory) -> Iterator[tuple[float, Tensor | None]]:
    """Yield the start time and this rank's loss of each step.

    The warm-up counts as the first step, but has two optimizer steps. In the first, memory is measured under a loose limit, and then its
    peak is compared with the limit. Before the second, all persistent memory is allocated, and the limit is as strict as an accelerator's.
    On a CPU, the timed steps have no limit.

    Raises:
        MemoryError: the first step needed more than the limit.
    """
    source = source_of(spec)
    share = spec.configuration.global_batch // mesh.dp.size
    sequences = range(mesh.dp.index * share, (mesh.dp.index + 1) * share)
    limit_bytes = spec.cluster.usable_bytes if spec.memory_limit_enforced else None
    with exact_pages(mesh.device):
        with peak.watch(), memory_limit(limit_bytes, mesh.device, room=True):
            replica = build(spec, mesh)
            first = time.monotonic(), replica.step(source.batch(0, sequences).to(mesh.device))
        if limit_bytes is not None and peak.bytes() > limit_bytes:
            raise MemoryError(f"cannot allocate {peak.bytes()} bytes: the limit is {format_bytes(limit_bytes)}")
        with memory_limit(limit_bytes, mesh.device, held_bytes=peak.held_bytes):
            replica.step(source.batch(1, sequences).to(mesh.device))
    yield first
    for step in range(1, spec.steps):
        yield time.monotonic(), replica.step(source.batch(step + 1, sequences).to(mesh.device))


def _agree(mesh: Mesh, loss: Tensor | None, peak_bytes: int, stop_requested: Callable[[], bool]) -> tuple[float, int, bool]:
    """Return the mean loss over the global batch, the largest peak of any rank in bytes, and whether to stop."""
    stop = mesh.rank == 0 and stop_requested()
    mine = torch.tensor([float(peak_bytes), float(stop), 0.0], dtype=torch.float64, device=mesh.device)
    if loss is not None and mesh.tp.index == 0:
        mine[2] = loss / mesh.replicas.size
    everyones = mine.new_empty(mesh.world * len(mine))
    dist.all_gather_single(everyones, mine)
    peaks, stops, losses = everyones.view(mesh.world, -1).cpu().unbind(1)
    return float(losses.sum()), int(peaks.max()), bool(stops[0])
