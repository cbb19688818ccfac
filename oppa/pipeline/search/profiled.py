"""Choose the schedule of a profiled pipeline: the fastest that fits, among the schedules by name and searched ones."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from oppa.errors import InputError
from oppa.pipeline import schedules
from oppa.pipeline.graph import PipelineShape, Schedule, whole
from oppa.pipeline.prediction import PipelineEstimate, footprint, predict, static_bytes, sum_of_ranks, times
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.search.heuristic import NODES, heuristic
from oppa.pipeline.search.task import ScheduleTask
from oppa.pipeline.stage_layout import evenly


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """Holds a schedule, and the prediction of a step in it."""

    schedule: Schedule
    name: str
    """Name of the schedule; `search` for a searched one."""
    prediction: PipelineEstimate


def choose(
    profile: PipelineProfile,
    shape: PipelineShape,
    *,
    dp: int = 1,
    shards: int = 0,
    zero_stage: int = 0,
    limit_bytes: float | None = None,
    stages: Sequence[range] = (),
    nodes: int = NODES,
    enough: Callable[[], bool] = lambda: False,
) -> Chosen:
    """Return the schedule with the shortest predicted step, among those predicted to fit.

    Args:
        shards: Number of replicas over which ZeRO shards, fewer than all under HSDP; 0 for all.
        limit_bytes: Memory limit of a device; None means no limit.
        stages: Parts of each stage; shared evenly by default.
        nodes: Number of actions to visit.
        enough: Returns True to end the search and take the best so far.

    Raises:
        InputError: no schedule is predicted to fit.
    """
    stages = stages or evenly(profile.chain, shape.stages)
    found = []
    for name, schedule in (*_named(shape), *_searched(profile, shape, stages, dp, shards, zero_stage, limit_bytes, nodes, enough)):
        prediction = predict(profile, schedule, dp=dp, shards=shards, zero_stage=zero_stage, stages=stages)
        if limit_bytes is None or prediction.peak_bytes <= limit_bytes:
            found.append(Chosen(schedule=schedule, name=name, prediction=prediction))
    if not found:
        raise InputError(
            "no schedule of this pipeline is predicted to fit", hint="use more stages or smaller micro-batches, or recompute activations"
        )
    return min(found, key=lambda each: each.prediction.step_s)


def _named(shape: PipelineShape) -> Iterator[tuple[str, Schedule]]:
    for name, (least, most) in schedules.CHUNKS.items():
        if least <= shape.chunks <= (most or shape.chunks) and shape.folded == (name in schedules.FOLDED):
            try:
                yield name, schedules.build_schedule(name, ranks=shape.ranks, micro_batches=shape.micro_batches, chunks=shape.chunks)
            except InputError:  # it does not allow this number of micro-batches
                continue


def _searched(
    profile: PipelineProfile,
    shape: PipelineShape,
    stages: Sequence[range],
    dp: int,
    shards: int,
    zero_stage: int,
    limit_bytes: float | None,
    nodes: int,
    enough: Callable[[], bool],
) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules that the heuristic finds in the memory that state leaves, with whole and with split backward passes.

    A variant is skipped if that memory does not suffice for one micro-batch.
    """
    fixed = static_bytes(profile, shape, stages, dp=dp, shards=shards, zero_stage=zero_stage)
    for split in (False, True):
        held = footprint(profile, stages, split=split, shards=shards or dp, zero_stage=zero_stage)
        gradients = sum_of_ranks(shape, held.gradients)
        left = [math.inf if limit_bytes is None else limit_bytes - one - other for one, other in zip(fixed, gradients, strict=True)]
        each = times(profile, stages, split=split)
        each = each if split else dataclasses.replace(each, weight_s=[0.0] * shape.stages)
        try:
            task = ScheduleTask(shape=shape, times=each, footprint=held, limits=left)
        except InputError:
            continue
        found = task.schedule(task.tidy(heuristic(task, nodes=nodes // 2, enough=enough).lists))
        yield "search", found if split else whole(found)
