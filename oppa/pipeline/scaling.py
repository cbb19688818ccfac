"""Predict from a profile how a job scales: the fastest pipeline that fits on each number of devices (FlexTrain, section 4.4).

Layers, heads, experts and sequences stay split as they are. Only the numbers of replicas and stages change.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from oppa.errors import InfeasibleError, InputError
from oppa.pipeline.graph import PipelineShape, Schedule
from oppa.pipeline.prediction import PipelineEstimate, modelled_s, predict
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.registry import CHUNKS, SPLIT, build_schedule
from oppa.pipeline.replication import Replication
from oppa.pipeline.stage_layout import EVEN, Stages, balanced, evenly, written

DISCREPANCY = 0.3
"""Largest difference of the two predictions of a speed-up, as a share of the smaller."""
FLAT = 0.01
"""Relative change of a prediction below which it goes neither up nor down."""
SIGNIFICANT = 0.05
"""Smallest relative gain in speed that justifies more devices."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaledJob:
    """Describes what a job keeps on every number of devices."""

    profile: PipelineProfile
    global_batch: int
    tp: int = 1
    """Number of devices that split the layers of a stage."""
    cp: int = 1
    """Number of devices that share each sequence."""
    ep: int = 1
    zero_stage: int = 0
    dp_shard: int = 0
    """Values of dp over which ZeRO shards, fewer than all under HSDP; 0 for all."""
    limit_bytes: float | None = None
    """Memory limit of a device; None if it is unknown."""

    def replication(self, dp: int) -> Replication:
        """Return the replicas of a pipeline of this job; ranks that share a sequence are replicas, too."""
        return Replication(dp=dp * self.cp, dp_shard=self.dp_shard * self.cp, zero_stage=self.zero_stage)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCandidate:
    """Describes one way to run the job, with its predictions."""

    dp: int
    pp: int
    chunks: int
    schedule: str
    stage_layout: str
    prediction: PipelineEstimate
    modelled_s: float
    """Seconds of a step by FlexTrain's equation 5."""
    passes: Schedule | None = None
    """Schedule that a search found; None for a schedule by name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Describes the fastest candidate on one number of devices."""

    devices: int
    best: ScaleCandidate
    speedup: float
    """Speed-up over the fastest candidate on the present number of devices, both predicted from the profile; it is 1 there."""
    modelled_speedup: float
    """Speed-up over the same candidate by FlexTrain's equation 5."""
    left_out: str = ""
    """Reason why the scale table leaves it out; empty if it does not."""


def candidates(job: ScaledJob, devices: int, *, replicas: Sequence[int] | None, schedules: Sequence[str]) -> Iterator[ScaleCandidate]:
    """Yield all ways to run a job on this number of devices, including those that do not fit in memory.

    Each pipeline comes with layers shared evenly, and with layers balanced by measured cost.

    Args:
        replicas: Allowed values of dp; None allows any.
        schedules: Names of schedules. Without a pipeline, there is only one.
    """
    for dp, pp, micro_batches in pipelines(job, devices, replicas):
        for schedule in schedules if pp > 1 else ("1f1b",):
            for each in _schedules(schedule, pp, micro_batches, job.profile.divisions) if _runs(job, schedule, pp, micro_batches) else ():
                for layout, stages in layouts(job.profile, each.shape):
                    yield candidate(job, each, dp=dp, schedule=schedule, stage_layout=layout, stages=stages)


def pipelines(job: ScaledJob, devices: int, replicas: Sequence[int] | None) -> Iterator[tuple[int, int, int]]:
    """Yield dp, pp and the micro-batches of each replica, for all pipelines on this number of devices that divide the batch evenly."""
    each = job.tp * job.cp
    for dp in range(1, devices // each + 1):
        micro_batches, uneven = divmod(job.global_batch, dp * job.profile.micro_batch)
        pp, left = divmod(devices, dp * each)
        unshared = dp % job.ep or (job.dp_shard and dp % job.dp_shard)
        if not (left or uneven or unshared or (replicas is not None and dp not in replicas) or pp > job.profile.divisions):
            yield dp, pp, micro_batches


def layouts(profile: PipelineProfile, shape: PipelineShape) -> Iterator[tuple[str, Stages]]:
    """Yield an even layout of layers and a balanced layout of measured costs, with their texts; none leaves a rank without parts.

    The even layout is called `even` if each rank has a layer and each stage a part, as in search spaces. Otherwise its parts are spelled
    out.
    """
    even, by_cost = evenly(profile.chain, shape.stages), balanced(profile.costs, shape)
    usual = shape.ranks <= profile.layers and shape.stages <= profile.layers + 2
    found = {EVEN if usual else written(even, profile.chain): even}
    for layout, stages in (found if by_cost == even else {**found, written(by_cost, profile.chain): by_cost}).items():
        if len({shape.rank_of(stage) for stage, parts in enumerate(stages) if parts}) == shape.ranks:
            yield layout, stages


def candidate(
    job: ScaledJob, passes: Schedule, *, dp: int, schedule: str, stage_layout: str, stages: Sequence[range], searched: bool = False
) -> ScaleCandidate:
    """Return one way to run a job: replicas of a pipeline with this schedule and these stages.

    Args:
        schedule: Name of the schedule.
        searched: A search found the schedule, so the candidate stores it.
    """
    shape = passes.shape
    return ScaleCandidate(
        dp=dp,
        pp=shape.ranks,
        chunks=shape.chunks,
        schedule=schedule,
        stage_layout=stage_layout,
        prediction=predict(job.profile, passes, job.replication(dp), stages=stages),
        modelled_s=modelled_s(job.profile, pp=shape.ranks, micro_batches=shape.micro_batches),
        passes=passes if searched else None,
    )


def fastest(job: ScaledJob, ways: Sequence[ScaleCandidate]) -> ScaleCandidate | None:
    """Return the fastest candidate that fits in memory; None if none fits."""
    fitting = [way for way in ways if job.limit_bytes is None or way.prediction.peak_bytes <= job.limit_bytes]
    return min(fitting, key=lambda way: way.prediction.step_s, default=None)


def scale_table(
    job: ScaledJob, ways: Mapping[int, Sequence[ScaleCandidate]], present: tuple[int, ScaleCandidate], devices: Collection[int]
) -> list[Entry]:
    """Take the fastest candidate that fits on each number of devices, and filter them (section 4.4.4).

    Args:
        ways: Candidates by number of devices, including the present number.
        present: The number of devices and the candidate that the job was profiled with. That candidate ran, so it counts even if it is
            predicted not to fit.
        devices: Numbers of devices that the table may contain. The present number always stays, if it is among them.

    Raises:
        InfeasibleError: nothing fits, or no number of devices is worth a change.
    """
    here, as_run = present
    now = fastest(job, [as_run, *ways[here]]) or as_run
    found = [(count, now if count == here else fastest(job, ways[count])) for count in devices]
    best = [(count, way) for count, way in found if way is not None]
    if not best:
        hint = "try more devices or smaller micro-batches; `oppa scale-table --help` describes the candidates"
        numbers = f"{min(devices)}..{max(devices)}" if devices else "no"
        raise InfeasibleError(f"no pipeline on {numbers} devices can run and fits in memory", hint=hint)
    return filtered(best, (here, now))


def filtered(best: Sequence[tuple[int, ScaleCandidate]], present: tuple[int, ScaleCandidate]) -> list[Entry]:
    """Filter the fastest candidates of each number of devices, in ascending order.

    A number is left out for one of three reasons. Its two predictions go in opposite directions, their speed-ups differ by too much, or
    it is hardly faster than a smaller number that stays. Both speed-ups are relative to the same candidate. Both are therefore 1 on the
    present number, which stays.

    Args:
        best: The fastest candidate of each number of devices.
        present: The number of devices that the job was profiled on, and the fastest candidate there.

    Raises:
        InfeasibleError: no number stays, and the present number is not among them.
    """
    devices_now, now = present
    entries: list[Entry] = []
    kept: float | None = None
    for devices, way in sorted(best, key=lambda each: each[0]):
        way = now if devices == devices_now else way
        speedup, modelled = now.prediction.step_s / way.prediction.step_s, now.modelled_s / way.modelled_s
        reason = ""
        if devices == devices_now:
            pass
        elif entries and _trend(entries[-1].speedup, speedup) * _trend(entries[-1].modelled_speedup, modelled) < 0:
            reason = "the predictions have opposite trends"
        elif abs(speedup - modelled) > DISCREPANCY * min(speedup, modelled):
            reason = f"the predictions differ: {speedup:.2f} and {modelled:.2f}"
        elif kept is not None and speedup < kept * (1 + SIGNIFICANT):
            reason = f"less than {SIGNIFICANT:.0%} faster than {kept:.2f}"
        entries.append(Entry(devices=devices, best=way, speedup=speedup, modelled_speedup=modelled, left_out=reason))
        kept = kept if reason else max(speedup, kept or 0.0)
    if all(entry.left_out for entry in entries):
        reasons = "; ".join(f"{entry.devices} devices: {entry.left_out}" for entry in entries[:3])
        raise InfeasibleError(
            f"none of {len(entries)} numbers of devices justifies a change ({reasons})",
            hint=f"include the {devices_now} devices that the job was profiled on, or try larger numbers",
        )
    return entries


def _trend(before: float, now: float) -> int:
    """Return 1 if a speed-up rises, -1 if it falls, 0 if it changes by less than FLAT."""
    change = now / before - 1
    return 0 if abs(change) < FLAT else 1 if change > 0 else -1


def _runs(job: ScaledJob, schedule: str, pp: int, micro_batches: int) -> bool:
    """Return whether torch's runtime supports it: 1f1b must fill its pipeline, and FSDP2 that reshards cannot split backward passes."""
    return (schedule != "1f1b" or micro_batches >= pp) and (schedule not in SPLIT or job.zero_stage <= 2)


def _schedules(schedule: str, pp: int, micro_batches: int, divisions: int) -> Iterator[Schedule]:
    """Yield a schedule with each number of chunks that it allows, up to the first at which no stage needs more than one part."""
    least, most = CHUNKS[schedule] if pp > 1 else (1, 1)
    if schedule.startswith("interleaved"):
        least = 2
    for chunks in range(least, min(most or divisions, -(-divisions // pp)) + 1):
        try:
            yield build_schedule(schedule, ranks=pp, micro_batches=micro_batches, chunks=chunks)
        except InputError:  # it does not allow this number of micro-batches
            continue
