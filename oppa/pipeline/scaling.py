"""How a job scales: for each number of devices the fastest pipeline that fits, as a profile predicts it (FlexTrain, section 4.4).

Layers, heads and experts stay split as they are: what changes is how many replicas and stages there are.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from oppa.errors import InfeasibleError, InputError
from oppa.pipeline.graph import Order, Shape
from oppa.pipeline.orders import CHUNKS, SPLIT, order
from oppa.pipeline.prediction import Prediction, modelled_s, predict
from oppa.pipeline.profile import Profile
from oppa.pipeline.stage_layout import EVEN, Stages, balanced, evenly, written

DISCREPANCY = 0.3
"""By how much the two predictions of a speed-up may differ, as a share of the smaller."""
FLAT = 0.01
"""A prediction that changes by less, as a share, goes neither up nor down."""
SIGNIFICANT = 0.05
"""By how much more devices must be faster than fewer, at least."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What stays the same whatever it runs on."""

    profile: Profile
    global_batch: int
    tp: int = 1
    """Devices of a stage that split its layers."""
    ep: int = 1
    zero_stage: int = 0
    limit_bytes: float | None = None
    """Of a device's memory; None: not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run the job, and what is predicted of it."""

    dp: int
    pp: int
    chunks: int
    schedule: str
    stage_layout: str
    prediction: Prediction
    modelled_s: float
    """Seconds of a step by FlexTrain's equation 5."""
    passes: Order | None = None
    """The order that was searched for; None: the schedule's own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Of one number of devices."""

    devices: int
    best: Candidate
    speedup: float
    """Over the fastest way on the present number of devices, both predicted from the profile; there it is 1."""
    modelled_speedup: float
    """The same ratio by equation 5."""
    left_out: str = ""
    """Why it is not in the scale table; empty: it is."""


def candidates(job: Job, devices: int, *, replicas: Sequence[int] | None, schedules: Sequence[str]) -> Iterator[Candidate]:
    """All ways to run a job on so many devices, whether they fit in memory or not: with layers shared out evenly, and by measured cost.

    Args:
        replicas: What dp may be; None: anything.
        schedules: By name. Where no pipeline is, there is but one.
    """
    for dp, pp, micro_batches in pipelines(job, devices, replicas):
        for schedule in schedules if pp > 1 else ("1f1b",):
            for each in _orders(schedule, pp, micro_batches, job.profile.divisions) if _runs(job, schedule, pp, micro_batches) else ():
                for layout, stages in layouts(job.profile, each.shape):
                    yield candidate(job, each, dp=dp, schedule=schedule, stage_layout=layout, stages=stages)


def pipelines(job: Job, devices: int, replicas: Sequence[int] | None) -> Iterator[tuple[int, int, int]]:
    """Yield dp, pp and the micro-batches of each replica for all pipelines on so many devices that share out the batch evenly."""
    for dp in range(1, devices // job.tp + 1):
        micro_batches, uneven = divmod(job.global_batch, dp * job.profile.micro_batch)
        pp, left = divmod(devices, dp * job.tp)
        if not (left or uneven or (replicas is not None and dp not in replicas) or pp > job.profile.divisions or dp % job.ep):
            yield dp, pp, micro_batches


def layouts(profile: Profile, shape: Shape) -> Iterator[tuple[str, Stages]]:
    """Layers shared out evenly, and measured costs as evenly as can be; without those that leave a rank nothing to compute.

    An even layout goes by that name where each rank has a layer and each stage a part, as search spaces have it.
    """
    even, by_cost = evenly(profile.chain, shape.stages), balanced(profile.costs, shape)
    usual = shape.ranks <= profile.layers and shape.stages <= profile.layers + 2
    found = {EVEN if usual else written(even, profile.chain): even}
    for layout, stages in (found if by_cost == even else {**found, written(by_cost, profile.chain): by_cost}).items():
        if len({shape.rank_of(stage) for stage, parts in enumerate(stages) if parts}) == shape.ranks:
            yield layout, stages


def candidate(
    job: Job, order: Order, *, dp: int, schedule: str, stage_layout: str, stages: Sequence[range], searched: bool = False
) -> Candidate:
    """One way to run a job: replicas of a pipeline that goes in this order through these stages.

    Args:
        searched: The order is not the schedule's own, and is kept.
    """
    shape = order.shape
    return Candidate(
        dp=dp,
        pp=shape.ranks,
        chunks=shape.chunks,
        schedule=schedule,
        stage_layout=stage_layout,
        prediction=predict(job.profile, order, dp=dp, zero_stage=job.zero_stage, stages=stages),
        modelled_s=modelled_s(job.profile, pp=shape.ranks, micro_batches=shape.micro_batches),
        passes=order if searched else None,
    )


def fastest(job: Job, ways: Sequence[Candidate]) -> Candidate | None:
    """Of those that fit; None where none does."""
    fitting = [way for way in ways if job.limit_bytes is None or way.prediction.peak_bytes <= job.limit_bytes]
    return min(fitting, key=lambda way: way.prediction.step_s, default=None)


def scale_table(job: Job, ways: Mapping[int, Sequence[Candidate]], present: tuple[int, Candidate], devices: Collection[int]) -> list[Entry]:
    """Take the fastest of each number of devices that fits, and filter them (section 4.4.4).

    Args:
        ways: By number of devices, the present one included.
        present: The number of devices that the job was profiled on, and the configuration that it was profiled in. It ran, so it counts
            even where it is predicted not to fit.
        devices: What may be in the table. The present number always is, if it is among them.

    Raises:
        InfeasibleError: nothing fits, or nothing is worth a change.
    """
    here, as_run = present
    now = fastest(job, [as_run, *ways[here]]) or as_run
    found = [(count, now if count == here else fastest(job, ways[count])) for count in devices]
    best = [(count, way) for count, way in found if way is not None]
    if not best:
        hint = "`oppa scale-table --help` says what is looked at; more devices, or smaller micro-batches, may fit"
        told = f"{min(devices)}..{max(devices)}" if devices else "no"
        raise InfeasibleError(f"no pipeline on {told} devices can be run, or fits into memory", hint=hint)
    return filtered(best, (here, now))


def filtered(best: Sequence[tuple[int, Candidate]], present: tuple[int, Candidate]) -> list[Entry]:
    """Filter the fastest of each number of devices, in ascending order.

    A number is left out where the two predictions do not go up or down together, where their speed-ups differ by too much, or where it
    is hardly faster than a smaller one that stays. Both speed-ups are over the same way, so both are 1 on the present number, which stays.

    Args:
        best: The fastest of each number of devices.
        present: The number of devices that the job was profiled on, and the fastest way there.

    Raises:
        InfeasibleError: none stays; the present number is not among them.
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
            reason = "predictions disagree on the trend"
        elif abs(speedup - modelled) > DISCREPANCY * min(speedup, modelled):
            reason = f"predictions differ: {speedup:.2f} and {modelled:.2f}"
        elif kept is not None and speedup < kept * (1 + SIGNIFICANT):
            reason = f"hardly faster than {kept:.2f}"
        entries.append(Entry(devices=devices, best=way, speedup=speedup, modelled_speedup=modelled, left_out=reason))
        kept = kept if reason else max(speedup, kept or 0.0)
    if all(entry.left_out for entry in entries):
        reasons = "; ".join(f"{entry.devices} devices: {entry.left_out}" for entry in entries[:3])
        raise InfeasibleError(
            f"none of {len(entries)} numbers of devices is worth a change ({reasons})",
            hint=f"include the {devices_now} devices that the job was profiled on, or try larger numbers",
        )
    return entries


def _trend(before: float, now: float) -> int:
    """Up, down, or neither."""
    change = now / before - 1
    return 0 if abs(change) < FLAT else 1 if change > 0 else -1


def _runs(job: Job, schedule: str, pp: int, micro_batches: int) -> bool:
    """Whether torch's runtime has it: 1f1b fills its pipeline, and FSDP2 that reshards does not split its backward pass."""
    return (schedule != "1f1b" or micro_batches >= pp) and (schedule not in SPLIT or job.zero_stage <= 2)


def _orders(schedule: str, pp: int, micro_batches: int, divisions: int) -> Iterator[Order]:
    """A schedule with each number of chunks that it can have, up to what leaves a part for each stage, or nothing for some."""
    least, most = CHUNKS[schedule] if pp > 1 else (1, 1)
    if schedule.startswith("interleaved"):
        least = 2
    for chunks in range(least, min(most or divisions, -(-divisions // pp)) + 1):
        try:
            yield order(schedule, ranks=pp, micro_batches=micro_batches, chunks=chunks)
        except InputError:  # not with so many micro-batches
            continue
