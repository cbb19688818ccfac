"""Generate a trace like that of Seren, the cluster on whose own trace FlexTrain was evaluated. It is never presented as Seren's.

Known (AcmeTrace, Hu et al., NSDI 2024, figures 2 to 5; CC-BY-4.0):
    durations   quantiles for each type of job
    shares      0.9% of jobs and 69.5% of GPU time for pretraining; others such that their durations add up to those of all GPU jobs
    GPU counts  shares of jobs, from the distribution over all of them and the outliers of each type

Assumed: arrival times (daily and weekly cycles, busier hours, evaluations and debugging in batches). Pretraining has the highest
priority, evaluation the lowest.

Durations and GPU counts are drawn in strata, so that seeds differ in the order of arrivals, but not in the amount of work. Durations are
then paired with GPU counts until each type has its share of GPU time. How full the cluster may be when a large job arrives is chosen such
that the mean queueing time without backfill matches the published one.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.cluster.job import TraceJob
from oppa.errors import InputError, require_known

DAY_S = 86_400.0
PRETRAIN = "Pretrain"
QUANTILES = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999, 1.0)
WAITS_S = (1.0, 60.0, 3_600.0)
DEBUG_GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 320, 512, 640, 768, 1024)
DEBUG_WEIGHTS = (0.118, 0.008, 0.038, 0.687, 0.061, 0.043, 0.0084, 0.0047, 0.0094, 0.0028, 0.0084, 0.0041, 0.0014, 0.0042)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """Describes one type of jobs."""

    name: str
    share: float
    """Share of all jobs."""
    gpu_time: float
    """Share of all GPU time."""
    durations_s: tuple[float, ...]
    """Durations in seconds at `QUANTILES`."""
    gpus: Mapping[int, float]
    """Weight of each GPU count."""
    queued: tuple[float, ...]
    """Published shares of jobs that wait no longer than `WAITS_S`, for comparison; nothing is fitted to them."""
    priority: int = 1
    batch: float = 1.0
    """Mean number of jobs that arrive together."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TraceProfile:
    """Holds the published properties of a cluster and its jobs, which a generated trace simulates."""

    name: str
    gpus: int
    gpus_per_node: int
    utilisation: float
    """Share of GPU time that is used, from the first day to the last."""
    jobs_a_day: float
    queue_s: float
    """Published mean queueing time in seconds."""
    kinds: tuple[JobKind, ...]


SEREN = TraceProfile(
    name="seren",
    gpus=2_288,
    gpus_per_node=8,
    utilisation=0.59,
    jobs_a_day=330_000 / 90,
    queue_s=445.984,
    kinds=(
        JobKind(
            name="Eval",
            share=0.6486,
            gpu_time=0.060,
            durations_s=(0.5, 3.75, 7.43, 15.9, 129, 391, 1_210, 2_760, 15_600, 124_000, 600_000),
            gpus={1: 0.64, 2: 0.10, 4: 0.028, 8: 0.231, 16: 4.9e-4, 32: 2.1e-4, 64: 5.8e-5, 128: 2.6e-5},
            queued=(0.476, 0.789, 0.988),
            priority=0,
            batch=12,
        ),
        JobKind(
            name=PRETRAIN,
            share=0.0089,
            gpu_time=0.695,
            durations_s=(0.5, 1.42, 4.18, 50.4, 297, 1_200, 24_600, 77_300, 313_000, 903_000, 1_209_604),
            gpus={32: 0.04, 64: 0.36, 96: 0.03, 128: 0.16, 192: 0.03, 256: 0.15, 384: 0.05, 512: 0.06, 768: 0.062, 960: 0.015, 1024: 0.043},
            queued=(0.72, 0.942, 0.996),
            priority=2,
        ),
        JobKind(
            name="SFT",
            share=0.1486,
            gpu_time=0.040,
            durations_s=(0.5, 5.64, 11.9, 47.2, 197, 452, 1_130, 2_320, 13_300, 115_000, 500_000),
            gpus={1: 0.17, 2: 0.20, 4: 0.06, 8: 0.52, 16: 0.04, 32: 7.3e-3, 64: 1.2e-3, 128: 5.9e-4, 192: 3e-4, 256: 5e-5, 512: 4e-5},
            queued=(0.605, 0.848, 0.993),
        ),
        JobKind(
            name="MLLM",
            share=0.0295,
            gpu_time=0.055,
            durations_s=(0.5, 3.87, 8.65, 28.1, 253, 795, 5_370, 22_800, 75_600, 361_000, 1_000_000),
            gpus={1: 0.30, 2: 0.25, 4: 0.06, 8: 0.30, 16: 0.047, 32: 0.018, 64: 0.0092, 128: 0.0125, 256: 0.0023},
            queued=(0.727, 0.937, 0.983),
        ),
        JobKind(
            name="Debug",
            share=0.0188,
            gpu_time=0.062,
            durations_s=(0.5, 2.34, 6.41, 23.3, 114, 359, 935, 1_890, 22_600, 344_000, 1_000_000),
            gpus=dict(zip(DEBUG_GPUS, DEBUG_WEIGHTS, strict=True)),
            queued=(0.848, 0.988, 0.999),
            batch=3,
        ),
        JobKind(
            name="Other",
            share=0.1456,
            gpu_time=0.088,
            durations_s=(0.5, 2.48, 4.13, 10.2, 76.9, 356, 2_290, 6_730, 55_600, 406_000, 1_000_000),
            gpus={1: 0.52, 2: 0.08, 4: 0.03, 8: 0.31, 16: 0.033, 24: 0.002, 32: 0.025},
            queued=(0.727, 0.948, 0.969),
        ),
    ),
)
LIKE = {SEREN.name: SEREN}
HOUR_S = 3_600.0
MOST_JOBS = 10_000_000
SWING, BUSIEST, WEEKEND, BURSTINESS, BATCH_S = 0.5, 15, 0.7, 2.0, 60.0
"""Assumed arrivals: daily swing, busiest hour, weekend rate over workday rate, gamma shape of hourly rates, and mean delay in a batch."""
LARGE, QUOTA, PLACES, CELL_S = 32, 1.045, 60, 300.0
"""Placement of large jobs: minimum GPUs, maximum demand as a share of the cluster, number of tries, and resolution in seconds."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ARRANGED = 0.005
"""Tolerance of a type's GPU time, as a share."""


def like(name: str) -> TraceProfile:
    """Return the profile of this name; raises InputError for an unknown name."""
    require_known(name, LIKE, f"`--like {name}` is unknown")
    return LIKE[name]


def generate(known: TraceProfile, *, days: float = 90.0, seed: int = 0) -> list[TraceJob]:
    """Return the jobs that arrive within `days`, in order of arrival; the same seed gives the same jobs.

    Raises:
        InputError: the trace would have no jobs, or too many.
    """
    if not 1 <= known.jobs_a_day * days <= MOST_JOBS:
        most = MOST_JOBS / known.jobs_a_day
        raise InputError(f"a trace of {days:g} days has no jobs, or too many", hint=f"give --days from 0.001 to {most:.0f}")
    random, span_s = np.random.default_rng(seed), days * DAY_S
    budget_gpu_s = known.gpus * span_s * known.utilisation
    drawn = []
    for kind in known.kinds:
        count = round(known.jobs_a_day * days * kind.share)
        gpus = _shared_out(kind.gpus, count)
        durations_s = _paired(_durations_s(kind, count, random), gpus, kind.gpu_time * budget_gpu_s, random)
        arrivals_s = random.permutation(_arrivals_s(count, span_s, kind.batch, random)) * np.maximum(0.0, 1 - durations_s / span_s)
        drawn += [(float(at), float(lasts), int(held), kind) for at, lasts, held in zip(arrivals_s, durations_s, gpus, strict=True)]
    small, large = ([job for job in drawn if (job[2] >= LARGE) is of_many] for of_many in (False, True))
    drawn = small + _placed(large, _wanted(small, span_s), known.gpus * QUOTA, span_s, random)
    drawn.sort(key=lambda job: job[0])
    return [
        TraceJob(name=f"job-{number}", arrival_s=at, duration_s=lasts, gpus=held, kind=kind.name, priority=kind.priority)
        for number, (at, lasts, held, kind) in enumerate(drawn)
    ]


_Drawn = tuple[float, float, int, JobKind]
"""Arrival in seconds, duration in seconds, GPUs, and type."""


def _wanted(jobs: Sequence[_Drawn], span_s: float) -> Floats:
    """Return the GPUs in demand if every job starts on arrival, one value per cell of `CELL_S` seconds."""
    changes = np.zeros(math.ceil(span_s / CELL_S) + 2)
    for at_s, lasts_s, gpus, _ in jobs:
        changes[int(at_s / CELL_S)] += gpus
        changes[int(min(at_s + lasts_s, span_s) / CELL_S) + 1] -= gpus
    return np.cumsum(changes)[:-1]


def _placed(large: Sequence[_Drawn], wanted: Floats, quota: float, span_s: float, random: np.random.Generator) -> list[_Drawn]:
    """Give each large job an arrival time at which the demand stays within the quota, largest jobs first.

    The assumption is that users do not submit a job that is known not to fit, and that quotas enforce it. If no tried time fits, the one
    with the least excess is taken. Tried times come from the arrivals of large jobs, which keeps their daily and weekly cycle.
    """
    moments = np.array([job[0] for job in large]) / span_s
    placed = []
    for _, lasts_s, gpus, kind in sorted(large, key=lambda job: -job[1] * job[2]):
        best: tuple[float, float] | None = None
        for share in random.choice(moments, PLACES):
            at_s = float(share) * max(0.0, span_s - lasts_s)
            taken = wanted[int(at_s / CELL_S) : int((at_s + lasts_s) / CELL_S) + 1]
            excess = float(taken.max(initial=0.0)) + gpus - quota
            if best is None or excess < best[0]:
                best = max(0.0, excess), at_s
            if excess <= 0:
                break
        assert best is not None
        at_s = best[1]
        wanted[int(at_s / CELL_S) : int((at_s + lasts_s) / CELL_S) + 1] += gpus
        placed.append((at_s, lasts_s, gpus, kind))
    return placed


def _durations_s(kind: JobKind, count: int, random: np.random.Generator) -> Floats:
    """Draw one duration from each of `count` strata, in random order."""
    strata = (np.arange(count) + random.random(count)) / max(count, 1)
    found: Floats = np.exp(np.interp(random.permutation(strata), QUANTILES, np.log(kind.durations_s)))
    return found


def _shared_out(weights: Mapping[int, float], count: int) -> Ints:
    """Return `count` GPU counts in proportion to their weights; largest remainders are rounded up."""
    shares = np.array(list(weights.values())) / sum(weights.values()) * count
    whole = np.floor(shares).astype(np.int64)
    whole[np.argsort(whole - shares, kind="stable")[: count - int(whole.sum())]] += 1
    return np.repeat(np.array(list(weights), dtype=np.int64), whole)


def _paired(durations_s: Floats, gpus: Ints, gpu_s: float, random: np.random.Generator) -> Floats:
    """Permute the durations until their GPU time with these counts is near `gpu_s`, by exchanging two at a time."""
    total = float(durations_s @ gpus)
    for _ in range(200 * len(gpus)):
        if len(gpus) < 2 or abs(total - gpu_s) <= ARRANGED * gpu_s:
            break
        one, other = random.integers(len(gpus), size=2)
        change = (durations_s[one] - durations_s[other]) * (gpus[other] - gpus[one])
        if abs(total + change - gpu_s) < abs(total - gpu_s):
            durations_s[[one, other]] = durations_s[[other, one]]
            total += float(change)
    return durations_s


def _arrivals_s(count: int, span_s: float, batch: float, random: np.random.Generator) -> Floats:
    """Return arrival times in batches. The rate is higher in the afternoon and on workdays, and varies randomly between hours."""
    hours = math.ceil(span_s / HOUR_S)
    hour = np.arange(hours)
    daily = 1 + SWING * np.cos((hour % 24 - BUSIEST) / 24 * 2 * np.pi)
    weekly = np.where(hour // 24 % 7 < 5, 1.0, WEEKEND)
    rates = daily * weekly * random.gamma(BURSTINESS, 1 / BURSTINESS, hours)
    batches = max(1, round(count / batch))
    strata = (np.arange(batches) + random.random(batches)) / batches
    sums = np.concatenate(([0.0], np.cumsum(rates)))
    begun_s = np.interp(strata * sums[-1], sums, np.arange(hours + 1) * HOUR_S) * span_s / (hours * HOUR_S)
    members = np.sort(random.integers(batches, size=count))
    found: Floats = np.minimum(begun_s[members] + random.exponential(BATCH_S, count) * (batch > 1), span_s)
    return found
