"""Predict the time and the memory of a step in a pipeline that was never run, from the profile of another (FlexTrain, section 4.4).

Notation:
    L   layers, and other parts that compute; p pipeline stages; v model chunks of each; m micro-batches of a replica
    t   seconds of one layer's forward and backward pass for one micro-batch
"""

import dataclasses
import itertools
from collections.abc import Sequence

from oppa.pipeline.execution import Times, execute
from oppa.pipeline.graph import PipelineShape, Schedule
from oppa.pipeline.memory import Footprint, peak_memory
from oppa.pipeline.profile import Part, PipelineProfile
from oppa.pipeline.replication import ALONE, Replication
from oppa.pipeline.stage_layout import evenly


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineEstimate:
    """Holds the predicted time and memory of one step."""

    step_s: float
    peak_bytes: float
    """Peak bytes of the rank that holds most."""
    passes_s: float
    """Part of `step_s` from the first pass to the last, in seconds."""


def predict(
    profile: PipelineProfile, schedule: Schedule, replication: Replication = ALONE, *, stages: Sequence[range] = ()
) -> PipelineEstimate:
    """Predict a step of a pipeline with this schedule.

    Args:
        stages: Parts of each stage; shared evenly by default.
    """
    stages = stages or evenly(profile.chain, schedule.shape.stages)
    executed = execute(schedule, times(profile, stages, split=schedule.split))
    peaks = peak_memory(schedule, footprint(profile, stages, replication, split=schedule.split))
    static = static_bytes(profile, schedule.shape, stages, replication)
    after_s = _after_passes_s(profile, schedule, stages, replication)
    return PipelineEstimate(
        step_s=executed.makespan_s + after_s + _rest_s(profile),
        peak_bytes=max(map(sum, zip(peaks, static, strict=True))),
        passes_s=executed.makespan_s,
    )


def between_s(profile: PipelineProfile, schedule: Schedule, stages: Sequence[range]) -> float:
    """Return the mean seconds by which a pass began later than passes and messages explain, in the profiled schedule."""
    accounted_s = execute(schedule, times(profile, stages, split=schedule.split)).makespan_s
    return max(0.0, profile.passes_s - accounted_s) / max(len(actions) for actions in schedule.ranks)


def times(profile: PipelineProfile, stages: Sequence[range], *, split: bool) -> Times:
    """Return the times of each stage for one micro-batch.

    If backward passes are split, torch computes the first stage's entirely in its second half, because its inputs have no gradients.
    """
    forward, backward, weight, whole = [], [], [], []
    between_s = profile.between_s
    for number, parts in enumerate(_parts(profile, stages)):
        whole_s = sum(part.backward_s for part in parts)
        inputs_s, weights_s = map(sum, zip((0.0, 0.0), *map(profile.split_s, parts), strict=True))
        forward.append(sum(part.forward_s for part in parts) + between_s)
        backward.append((whole_s if not split else inputs_s if number else 0.0) + between_s)
        weight.append((weights_s if number else whole_s) + between_s)
        whole.append(whole_s + between_s)
    transfers = [profile.point_to_point.seconds(profile.boundary_bytes)] * (len(stages) - 1)
    return Times(forward_s=forward, backward_s=backward, weight_s=weight if split else (), whole_s=whole, transfer_s=transfers)


def footprint(profile: PipelineProfile, stages: Sequence[range], replication: Replication = ALONE, *, split: bool) -> Footprint:
    """Return the bytes of each stage for one micro-batch (eq. 11), on a rank of a replica; `times` has the rule of the first stage."""
    parts = _parts(profile, stages)
    held = [sum(part.held_bytes for part in stage) for stage in parts]
    kept = [sum(map(profile.kept_bytes, stage)) for stage in parts]
    working = [_backward_working(stage) for stage in parts]
    if split:
        kept[0] = held[0]
    return Footprint(
        held=held,
        for_weights=kept if split else (),
        working=[0.0, *working[1:]] if split else working,
        weights_working=[working[0], *[0.0] * len(working[1:])] if split else (),
        forward_working=[_forward_working(stage) for stage in parts],
        gradients=[sum(part.weight_bytes for part in stage) / replication.gradient_shards for stage in parts],
    )


def static_bytes(profile: PipelineProfile, shape: PipelineShape, stages: Sequence[range], replication: Replication = ALONE) -> list[float]:
    """Return the bytes that each rank holds throughout a step in any schedule, shape (p,): state, and buffers for messages.

    Gradients are not included: they are allocated by the first backward passes.
    """
    states = [_state_bytes(parts, replication) for parts in _parts(profile, stages)]
    return shape.sum_by_rank(list(map(sum, zip(states, _message_bytes(profile, shape), strict=True))))


def modelled_s(profile: PipelineProfile, *, pp: int, micro_batches: int) -> float:
    """Return the seconds of a step by equation 5 of FlexTrain: passes through chunks of one layer each, without communication."""
    layers = profile.divisions
    layer_s = sum(part.forward_s + part.backward_s for part in profile.parts) / layers
    chunks = -(-layers // pp)
    if micro_batches >= pp:
        return (micro_batches * chunks + pp - 1) * layer_s
    return (pp * chunks + micro_batches - 1) * layer_s


def _parts(profile: PipelineProfile, stages: Sequence[range]) -> list[tuple[Part, ...]]:
    return [profile.parts[stage.start : stage.stop] for stage in stages]


def _forward_working(parts: Sequence[Part]) -> float:
    """Return the peak bytes that a forward pass adds; the bytes that its parts hold accumulate on the way."""
    before = [0.0, *itertools.accumulate(part.held_bytes for part in parts)]
    return max((start + part.forward_working_bytes for start, part in zip(before, parts, strict=False)), default=0.0)


def _backward_working(parts: Sequence[Part]) -> float:
    """Return the peak bytes that a backward pass adds; it has released the later parts when it reaches a part."""
    released = [0.0, *itertools.accumulate(part.held_bytes for part in reversed(parts))]
    return max((part.backward_working_bytes - gone for gone, part in zip(released, reversed(parts), strict=False)), default=0.0)


def _state_bytes(parts: Sequence[Part], replication: Replication) -> float:
    """Return the bytes of weights, optimizer state, and buckets for the exchange of gradients (eqs. 12 and 13, with ZeRO)."""
    weights = sum(part.weight_bytes for part in parts)
    buckets = weights if replication.dp > 1 and replication.zero_stage <= 1 else 0.0
    states = sum(part.optimizer_bytes for part in parts)
    return weights / replication.weight_shards + buckets + states / replication.optimizer_shards


def _message_bytes(profile: PipelineProfile, shape: PipelineShape) -> list[float]:
    """Return the bytes of each stage's messages, shape (S,).

    torch keeps a buffer for what every micro-batch receives, and the gradient of its input until the step ends.
    """
    last, each = shape.stages - 1, float(shape.micro_batches * profile.boundary_bytes)
    return [each * (2 * (stage > 0) + (stage < last)) for stage in range(last + 1)]


def _after_passes_s(profile: PipelineProfile, schedule: Schedule, stages: Sequence[range], replication: Replication) -> float:
    """Return the seconds of gradient exchange and update after the passes, on the slowest rank."""
    weights = schedule.shape.sum_by_rank([sum(part.weight_bytes for part in stage) for stage in _parts(profile, stages)])
    shards, dp = replication.optimizer_shards, replication.dp
    return max(profile.update_byte_s * size / shards + _exchange_s(profile, size, dp) for size in weights)


def _exchange_s(profile: PipelineProfile, size_bytes: float, dp: int) -> float:
    """Return the seconds of an all-reduce of `size_bytes`: 2 (dp - 1) messages of one dp-th each."""
    return (dp - 1) * profile.all_reduce.latency_s + 2 * (dp - 1) / dp * size_bytes * profile.all_reduce.byte_s


def _rest_s(profile: PipelineProfile) -> float:
    """Return the seconds of a profiled step outside passes, exchange and update; the prediction adds them in any layout."""
    weights = max(sum(part.weight_bytes for part in profile.parts) / profile.pp, 1)
    known_s = profile.passes_s + profile.update_byte_s * weights + _exchange_s(profile, weights, profile.dp)
    return max(0.0, profile.step_s - known_s)
