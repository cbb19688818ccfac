"""Build the profile of a run's steps from the recorders of all ranks, and measure the speed of messages between ranks."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from oppa.pipeline.from_configuration import stages_of
from oppa.pipeline.graph import Schedule
from oppa.pipeline.prediction import between_s
from oppa.pipeline.profile import MessageTime, Part, PipelineProfile
from oppa.training.parallel.extra_parameters import replicas_of, shards_of
from oppa.training.parallel.mesh import Mesh
from oppa.training.parallel.pipeline_parallel import numbers_of
from oppa.training.profiler.memory import PeakMemory
from oppa.training.profiler.recorder import PassRecorder, PassSums, Sum, part_of
from oppa.training.replica import Replica
from oppa.trials.trial_folder import TrialSpec

REPEATS = 5
SMALL_BYTES, LARGE_BYTES = 1 << 10, 1 << 22
"""Sizes of the two messages that are timed."""


class StepProfiling:
    """Profiles the steps of one rank until `profile` is called; all ranks do the same.

    Args:
        replica: Replica of this rank.
        spec: Model and configuration.
        mesh: Process groups of this rank.
        schedule: Schedule of the first steps.
    """

    def __init__(self, replica: Replica, spec: TrialSpec, mesh: Mesh, schedule: Schedule) -> None:
        self._replica, self._spec, self._mesh, self._schedule = replica, spec, mesh, schedule
        configuration = spec.configuration
        stages = dict(zip(numbers_of(configuration, mesh.pp.index), replica.stages, strict=True))
        self._parts = stages_of(configuration, spec.model)
        self._recorder = PassRecorder(stages, self._parts, mesh.device)
        self._seen: PassSums = {}
        self._steps_s: list[tuple[float, float, float]] = []
        """Seconds of each whole step, of its passes and of its update."""
        replica.record(self._recorder)

    def watch(self, peak: PeakMemory) -> None:
        """Measure the memory of the next step with `peak`; its times are not used."""
        self._recorder.memory = peak

    def took(self, step_s: float) -> None:
        """Record a finished step, which took `step_s` seconds."""
        watched = self._recorder.memory is not None
        seen = self._recorder.step()
        if not watched and self._recorder.split == self._schedule.split:
            self._steps_s.append((step_s, self._recorder.passes_s, self._recorder.updated_s))
        for (part, field), found in seen.items():
            if watched == field.endswith("_bytes"):
                before = self._seen.get((part, field), Sum(0.0, 0))
                self._seen[part, field] = Sum(before.total + found.total, before.values + found.values)

    def skip(self) -> None:
        """Ignore the step that has just finished."""
        self._recorder.step()

    def stop(self) -> None:
        """Stop recording."""
        self._recorder.close()
        self._replica.record(None)

    def profile(self) -> PipelineProfile:
        """Stop recording, and return the profile over all ranks; all ranks call it."""
        self.stop()
        spec, configuration = self._spec, self._spec.configuration
        weights: dict[int, int] = {}
        for stage in self._replica.stages:
            for name, parameter in stage.named_parameters():
                part = part_of(name, spec.model.layers)
                weights[part] = weights.get(part, 0) + parameter.numel() * parameter.element_size()
        updated = sum(weights.values()) / (shards_of(configuration) if configuration.zero_stage else 1)
        step_s, passes_s, update_s = map(statistics.median, zip(*self._steps_s or [(0.0, 0.0, 0.0)], strict=True))
        mine = {"seen": self._seen, "weights": weights, "passes_s": passes_s, "update_byte_s": update_s / updated if updated else 0.0}
        everyones: list[Any] = [None] * self._mesh.world
        dist.all_gather_object(everyones, mine)
        found = PipelineProfile(
            parts=_parts(everyones, spec.model.layers, len(spec.training.moments)),
            micro_batch=configuration.micro_batch,
            pp=configuration.pp,
            dp=replicas_of(configuration),
            zero_stage=configuration.zero_stage,
            step_s=step_s,
            passes_s=max(each["passes_s"] for each in everyones),
            update_byte_s=max(each["update_byte_s"] for each in everyones),
            boundary_bytes=self._boundary_bytes(),
            point_to_point=self._point_to_point(),
            all_reduce=self._all_reduce(),
        )
        return dataclasses.replace(found, between_s=between_s(found, self._schedule, self._parts))

    def _boundary_bytes(self) -> int:
        """Return the bytes of the activations between two layers, for one micro-batch."""
        between = self._replica.boundary(1)
        return between.numel() * between.element_size()

    def _point_to_point(self) -> MessageTime:
        """Measure messages between the first two ranks of this pipeline."""
        axis = self._mesh.pp
        if axis.group is None:
            return MessageTime()
        ranks = dist.get_process_group_ranks(axis.group)

        def there_and_back(size: int) -> Callable[[], None]:
            message = torch.zeros(size, dtype=torch.uint8, device=self._mesh.device)

            def once() -> None:
                if axis.index == 0:
                    dist.send(message, ranks[1], group=axis.group)
                    dist.recv(message, ranks[1], group=axis.group)
                elif axis.index == 1:
                    dist.recv(message, ranks[0], group=axis.group)
                    dist.send(message, ranks[0], group=axis.group)

            return once

        return self._link(there_and_back, 2.0, 2.0)

    def _all_reduce(self) -> MessageTime:
        """Estimate an all-reduce of two ranks from one over all n ranks: 2 (n - 1) messages, each of 1 / n of the data."""
        world = self._mesh.world
        if world == 1:
            return MessageTime()

        def summed(size: int) -> Callable[[], None]:
            values = torch.zeros(size // 4, device=self._mesh.device)
            return lambda: dist.all_reduce(values) and None

        return self._link(summed, float(world - 1), 2 * (world - 1) / world)

    def _link(self, of_size: Callable[[int], Callable[[], None]], messages: float, shares: float) -> MessageTime:
        """Fit latency and seconds per byte to a small and a large operation.

        Args:
            of_size: Returns the operation for a number of bytes.
            messages: Latencies in one operation.
            shares: Bytes that the operation moves, per byte of its size.
        """
        small_s, large_s = (self._agreed(self._timed(of_size(size))) for size in (SMALL_BYTES, LARGE_BYTES))
        byte_s = max(0.0, large_s - small_s) / (LARGE_BYTES - SMALL_BYTES)
        return MessageTime(latency_s=small_s / messages, byte_s=byte_s / shares)

    def _timed(self, once: Callable[[], None]) -> float:
        times_s = []
        for _ in range(REPEATS):
            dist.barrier()
            begin_s = time.perf_counter()
            once()
            if self._mesh.device.type == "cuda":
                torch.cuda.synchronize(self._mesh.device)
            times_s.append(time.perf_counter() - begin_s)
        return statistics.median(times_s)

    def _agreed(self, seconds: float) -> float:
        """Return the maximum over all ranks."""
        most = torch.tensor([seconds], dtype=torch.float64, device=self._mesh.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return float(most)


def _parts(everyones: Iterable[dict[str, Any]], layers: int, moments: int) -> tuple[Part, ...]:
    """Return the means of each part over all passes on all ranks."""
    sums: dict[tuple[int, str], Sum] = {}
    weights: dict[int, int] = {}
    for each in everyones:
        weights |= each["weights"]
        for key, found in each["seen"].items():
            before = sums.get(key, Sum(0.0, 0))
            sums[key] = Sum(before.total + found[0], before.values + found[1])
    fields: list[dict[str, float]] = [{} for _ in range(layers + 2)]
    for (part, field), (total, values) in sums.items():
        fields[part][field] = total / values
    sizes = [weights.get(part, 0) for part in range(layers + 2)]
    return tuple(Part(**found, weight_bytes=size, optimizer_bytes=moments * size) for found, size in zip(fields, sizes, strict=True))
