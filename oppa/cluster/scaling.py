"""Scale-up and reclaim decisions (FlexTrain, section 5). Pure functions: they take the state and return changes of size with reasons.

Notation:
    S           speed-up of a size over the job's present one
    lambda      arrivals of large jobs per second
    P_th        minimum probability that a change pays
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from oppa.cluster.job import ScaleTable, TraceJob
from oppa.errors import InputError

SMALLEST, LARGEST, OLDEST = ORDERS = ("smallest", "largest", "oldest")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Holds the settings of the scaling controller; the defaults are the paper's."""

    threshold: float = 0.6
    """P_th; 0 uses idle GPUs at once."""
    window_s: float = 8 * 3600.0
    """Seconds over which lambda is estimated."""
    counted_gpus: int = 32
    """Minimum GPUs of a submission that counts for lambda."""
    max_scale: float = 4.0
    """Maximum size of a job, as a multiple of the GPUs that it requests."""
    growth_order: str = SMALLEST
    """Which job scales up first: the one with the fewest GPUs, with the most, or with the earliest arrival."""
    unit: str = "GPUs"
    """Name of what is counted, for messages: GPUs or hosts."""

    def __post_init__(self) -> None:
        """Raise InputError for an impossible value."""
        for name, holds, hint in (
            ("threshold", 0 <= self.threshold <= 1, "use a number from 0 to 1"),
            ("window_s", 0 < self.window_s < math.inf, "use a positive time"),
            ("counted_gpus", self.counted_gpus >= 1, "use at least 1"),
            ("max_scale", 1 <= self.max_scale < math.inf, "use at least 1"),
            ("growth_order", self.growth_order in ORDERS, f"use one of {', '.join(ORDERS)}"),
        ):
            if not holds:
                raise InputError(f"`{name} = {getattr(self, name)}` of the scaling controller is out of range", hint=hint)


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """Describes an elastic job on its present GPUs."""

    job: TraceJob
    gpus: int
    left_s: float = math.inf
    """Seconds until the job ends at its present speed, if known. The duration of a job in a trace is unknown until it has passed."""

    @property
    def table(self) -> ScaleTable:
        """Return the scale table of the job."""
        assert self.job.table is not None
        return self.job.table

    @property
    def speedup(self) -> float:
        """Return the speed-up of the present size over the requested size."""
        return self.table.speedup(self.gpus)

    @property
    def spare(self) -> int:
        """Return the number of GPUs in addition to the request."""
        return max(0, self.gpus - self.job.gpus)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """Describes a change of a job's size, with the reason."""

    job: TraceJob
    before: int
    """Present number of GPUs."""
    after: int
    """New number of GPUs."""
    speedup: float
    """Speed-up over the present size."""
    reason: str
    probability: float | None = None
    """Probability that a scale-up pays (eq. 15); None for other changes."""


def probability(speedup: float, overhead_s: float, rate: float) -> float:
    """Return the probability that idle GPUs stay idle long enough to pay for a change (eq. 15); 0 without a speed-up.

    By equation 14, T_avail must exceed S / (S - 1) times the overhead. Arrivals are assumed to be a Poisson process.
    """
    if speedup <= 1:
        return 0.0
    return math.exp(-rate * speedup / (speedup - 1) * overhead_s)


def grow(
    running: Iterable[Running], idle: int, rate: float, settings: Settings, *, possible: Callable[[Running, int], bool] = lambda *_: True
) -> ScaleDecision | None:
    """Return the next scale-up into idle GPUs while no job waits (section 5.1); None if no change pays.

    Args:
        idle: GPUs that no job holds.
        rate: lambda.
        possible: Returns True if the placement allows a job to hold this number of GPUs.
    """
    for each in sorted(running, key=_order(settings.growth_order)):
        bound = int(min(each.gpus + idle, settings.max_scale * each.job.gpus))
        best = each.table.fastest(bound)
        while best is not None and best.gpus > each.gpus and not possible(each, best.gpus):
            best = each.table.fastest(best.gpus - 1)
        if best is None or best.gpus <= each.gpus:
            continue
        speedup = best.speedup / each.speedup
        chance = probability(speedup, each.job.overhead_s, rate)
        worth_it = speedup > 1 and each.left_s * (speedup - 1) > speedup * each.job.overhead_s  # eq. 14; T_avail also ends with the job
        if worth_it and (chance > settings.threshold or settings.threshold == 0):
            idle_here = f"{best.gpus - each.gpus} idle {settings.unit} make it {speedup:.2f} times as fast"
            pays = f"which pays off with a probability of {chance:.2f}" if settings.threshold else "and the threshold is 0"
            reason = f"{idle_here}, {pays}"
            return ScaleDecision(job=each.job, before=each.gpus, after=best.gpus, speedup=speedup, reason=reason, probability=chance)
    return None


Enough = Callable[[Sequence[ScaleDecision]], bool]
"""Returns True if the GPUs that these changes free are enough to start the waiting job."""


def giving(lacking: int) -> Enough:
    """Return a test that the changes free at least `lacking` GPUs, on any nodes."""
    return lambda changes: sum(change.before - change.after for change in changes) >= lacking


def reclaim(running: Iterable[Running], enough: Enough, *, unit: str = "GPUs") -> list[ScaleDecision]:
    """Choose the jobs that give GPUs back to a job that cannot start (section 5.2).

    Jobs with the largest speed-up over their request give first, down to it. The last one keeps the largest size that still frees enough.
    The list is empty if nothing is lacking, or if even all spare GPUs would not be enough.
    """

    def back(each: Running, after: int) -> ScaleDecision:
        speedup = each.table.speedup(after) / each.speedup
        reason = f"a waiting job needs {each.gpus - after} of its {each.gpus} {unit}"
        return ScaleDecision(job=each.job, before=each.gpus, after=after, speedup=speedup, reason=reason)

    holding = sorted((each for each in running if each.spare), key=lambda each: (-each.speedup, each.job.arrival_s, each.job.name))
    entirely = [back(each, each.job.gpus) for each in holding]
    if enough([]) or not enough(entirely):
        return []
    count = next(count for count in range(1, len(holding) + 1) if enough(entirely[:count]))
    before, last = entirely[: count - 1], holding[count - 1]
    return next(found for after in _smaller(last) if enough(found := [*before, back(last, after)]))


def _smaller(each: Running) -> Iterator[int]:
    """Yield the sizes that a job can shrink to, down to its request: the largest first, none slower than a smaller one."""
    gpus = each.gpus
    while gpus > each.job.gpus:
        fastest = each.table.fastest(gpus - 1)
        gpus = max(each.job.gpus, fastest.gpus if fastest else 0)
        yield gpus


def shared_out(running: Sequence[Running], idle: int, settings: Settings) -> dict[str, int]:
    """Size all elastic jobs anew (ElasticFlow, Gu et al. 2023). Each round takes the growth that adds the most throughput per GPU.

    Returns:
        GPUs by the name of the job.
    """
    sizes = {each.job.name: each.job.gpus for each in running}
    left = idle + sum(each.spare for each in running)
    while True:
        steps = []
        for each in running:
            now = sizes[each.job.name]
            above = [size for size in each.table.sizes if now < size.gpus <= min(now + left, settings.max_scale * each.job.gpus)]
            gain = each.table.speedup(now)
            steps += [((size.speedup - gain) / (size.gpus - now), each.job.name, size.gpus) for size in above if size.speedup > gain]
        if not steps:
            return sizes
        _, name, gpus = max(steps, key=lambda step: (step[0], step[1]))
        left -= gpus - sizes[name]
        sizes[name] = gpus


def _order(first: str) -> Callable[[Running], tuple[float, float, str]]:
    sign = {SMALLEST: 1, LARGEST: -1, OLDEST: 0}[first]
    return lambda each: (sign * each.gpus, each.job.arrival_s, each.job.name)
