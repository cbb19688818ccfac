"""Choose the schedule of a profiled pipeline: the fastest that fits, among the schedules by name and searched ones."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from oppa.errors import InputError
from oppa.pipeline.graph import PipelineShape, Schedule, whole
from oppa.pipeline.prediction import PipelineEstimate, footprint, predict, static_bytes, times
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.registry import SEARCH
from oppa.pipeline.replication import ALONE, Replication
from oppa.pipeline.schedules import schedules_of
from oppa.pipeline.search.heuristic import NODES, heuristic
from oppa.pipeline.search.task import ScheduleTask
from oppa.pipeline.stage_layout import evenly


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenSchedule:
    """Holds a schedule, and the prediction of a step in it."""

    schedule: Schedule
    name: str
    """Name of the schedule; `search` for a searched one."""
    prediction: PipelineEstimate


def choose(
    profile: PipelineProfile,
    shape: PipelineShape,
    replication: Replication = ALONE,
    *,
    limit_bytes: float | None = None,
    stages: Sequence[range] = (),
    nodes: int = NODES,
    enough: Callable[[], bool] = lambda: False,
) -> ChosenSchedule:
    """Return the schedule with the shortest predicted step, among those predicted to fit.

    Args:
        limit_bytes: Memory limit of a device; None means no limit.
        stages: Parts of each stage; shared evenly by default.
        nodes: Number of actions to visit.
        enough: Returns True to end the search and take the best so far.

    Raises:
        InputError: no schedule is predicted to fit.
    """
    stages = stages or evenly(profile.chain, shape.stages)
    tasks = _tasks(profile, shape, stages, replication, limit_bytes)
    searched = [(SEARCH, _searched(task, split=split, nodes=nodes // 2, enough=enough)) for split, task in tasks]
    found = []
    for name, schedule in (*schedules_of(shape), *searched):
        prediction = predict(profile, schedule, replication, stages=stages)
        if limit_bytes is None or prediction.peak_bytes <= limit_bytes:
            found.append(ChosenSchedule(schedule=schedule, name=name, prediction=prediction))
    if not found:
        raise InputError(
            "no schedule of this pipeline is predicted to fit", hint="use more stages or smaller micro-batches, or recompute activations"
        )
    return min(found, key=lambda each: each.prediction.step_s)


def _tasks(
    profile: PipelineProfile, shape: PipelineShape, stages: Sequence[range], replication: Replication, limit_bytes: float | None
) -> Iterator[tuple[bool, ScheduleTask]]:
    """Yield the search for a schedule in the memory that state leaves: False and with whole backward passes, True and with split ones.

    A variant is skipped if that memory does not suffice for one micro-batch.
    """
    fixed = static_bytes(profile, shape, stages, replication)
    for split in (False, True):
        held = footprint(profile, stages, replication, split=split)
        gradients = shape.sum_by_rank(held.gradients)
        left = [math.inf if limit_bytes is None else limit_bytes - one - other for one, other in zip(fixed, gradients, strict=True)]
        each = times(profile, stages, split=split)
        each = each if split else dataclasses.replace(each, weight_s=[0.0] * shape.stages)
        try:
            yield split, ScheduleTask(shape=shape, times=each, footprint=held, limits=left)
        except InputError:
            continue


def _searched(task: ScheduleTask, *, split: bool, nodes: int, enough: Callable[[], bool]) -> Schedule:
    """Return the schedule that the heuristic finds."""
    found = task.schedule(task.tidy(heuristic(task, nodes=nodes, enough=enough).lists))
    return found if split else whole(found)
