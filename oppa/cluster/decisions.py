"""Who grows, and who gives back (FlexTrain, section 5). Pure functions: what is known goes in, what to do comes out, with a reason.

Notation:
    S           speed-up of a size over the job's present one
    lambda      arrivals of large jobs, a second
    P_th        the probability that a gain must have
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from oppa.cluster.job import Job, ScaleTable
from oppa.errors import InputError

SMALLEST, LARGEST, OLDEST = ORDERS = ("smallest", "largest", "oldest")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of the scaling controller; the paper's, unless told otherwise."""

    threshold: float = 0.6
    """P_th; 0: whatever is idle is used at once."""
    window_s: float = 8 * 3600.0
    counted_gpus: int = 32
    """Submissions count for lambda from so many GPUs on."""
    most: float = 4.0
    """A job grows to at most so many times the GPUs that it asks for."""
    first: str = SMALLEST
    """Who grows first: whoever holds fewest GPUs, most, or has waited longest."""
    unit: str = "GPUs"
    """What is counted, for people."""

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be meant."""
        for name, holds, hint in (
            ("threshold", 0 <= self.threshold <= 1, "a probability"),
            ("window_s", 0 < self.window_s < math.inf, "a positive time"),
            ("counted_gpus", self.counted_gpus >= 1, "at least 1"),
            ("most", 1 <= self.most < math.inf, "at least 1"),
            ("first", self.first in ORDERS, f"one of {', '.join(ORDERS)}"),
        ):
            if not holds:
                raise InputError(f"`{name} = {getattr(self, name)}` of the scaling controller is not possible", hint=hint)


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """An elastic job on its present GPUs."""

    job: Job
    gpus: int
    left_s: float = math.inf
    """Until it is done as it runs now, where that is known; a trace's duration is not, before it has passed."""

    @property
    def table(self) -> ScaleTable:
        """How it scales."""
        assert self.job.table is not None
        return self.job.table

    @property
    def speedup(self) -> float:
        """Present, over what it asked for."""
        return self.table.speedup(self.gpus)

    @property
    def spare(self) -> int:
        """GPUs beyond those that it asked for."""
        return max(0, self.gpus - self.job.gpus)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A job goes to another size."""

    job: Job
    before: int
    after: int
    speedup: float
    """Over the present size."""
    reason: str
    probability: float | None = None
    """That growing pays (eq. 15)."""


def probability(speedup: float, overhead_s: float, rate: float) -> float:
    """Equation 15: that idle GPUs stay idle for long enough to pay for a change; no gain, no chance.

    From equation 14, T_avail must be longer than S / (S - 1) of the overhead; arrivals are a Poisson process.
    """
    if speedup <= 1:
        return 0.0
    return math.exp(-rate * speedup / (speedup - 1) * overhead_s)


def grow(
    running: Iterable[Running], idle: int, rate: float, settings: Settings, *, possible: Callable[[Running, int], bool] = lambda *_: True
) -> Scaling | None:
    """The next job to grow into idle GPUs, while nobody waits (section 5.1); None where nobody should.

    Args:
        idle: GPUs that nobody holds.
        rate: lambda.
        possible: Whether a job can be given so many GPUs, where they lie.
    """
    for each in sorted(running, key=_order(settings.first)):
        bound = int(min(each.gpus + idle, settings.most * each.job.gpus))
        best = each.table.fastest(bound)
        while best is not None and best.gpus > each.gpus and not possible(each, best.gpus):
            best = each.table.fastest(best.gpus - 1)
        if best is None or best.gpus <= each.gpus:
            continue
        speedup = best.speedup / each.speedup
        chance = probability(speedup, each.job.overhead_s, rate)
        worth_it = speedup > 1 and each.left_s * (speedup - 1) > speedup * each.job.overhead_s  # eq. 14, with its own end in T_avail
        if worth_it and (chance > settings.threshold or settings.threshold == 0):
            idle_here = f"{best.gpus - each.gpus} idle {settings.unit} make it {speedup:.2f} times as fast"
            reason = f"{idle_here}, which pays with a probability of {chance:.2f}"
            return Scaling(job=each.job, before=each.gpus, after=best.gpus, speedup=speedup, reason=reason, probability=chance)
    return None


Enough = Callable[[Sequence[Scaling]], bool]
"""Whether what such changes free lets a job start that waits."""


def giving(lacking: int) -> Enough:
    """So many GPUs, wherever they lie."""
    return lambda changes: sum(change.before - change.after for change in changes) >= lacking


def reclaim(running: Iterable[Running], enough: Enough, *, unit: str = "GPUs") -> list[Scaling]:
    """Who gives back for a job that cannot start (section 5.2); nobody, where nothing is lacking or all of it would not be enough.

    Those first that have gained most; the last one keeps the size that is fastest on what need not be given.
    """

    def back(each: Running, after: int) -> Scaling:
        speedup = each.table.speedup(after) / each.speedup
        reason = f"a job that waits needs {each.gpus - after} of its {each.gpus} {unit}"
        return Scaling(job=each.job, before=each.gpus, after=after, speedup=speedup, reason=reason)

    holding = sorted((each for each in running if each.spare), key=lambda each: (-each.speedup, each.job.arrival_s, each.job.name))
    entirely = [back(each, each.job.gpus) for each in holding]
    if enough([]) or not enough(entirely):
        return []
    count = next(count for count in range(1, len(holding) + 1) if enough(entirely[:count]))
    before, last = entirely[: count - 1], holding[count - 1]
    return next(found for after in _smaller(last) if enough(found := [*before, back(last, after)]))


def _smaller(each: Running) -> Iterator[int]:
    """Sizes that a job can go back to, down to what it asked for: the largest first, none slower than a smaller one."""
    gpus = each.gpus
    while gpus > each.job.gpus:
        fastest = each.table.fastest(gpus - 1)
        gpus = max(each.job.gpus, fastest.gpus if fastest else 0)
        yield gpus


def shared_out(running: Sequence[Running], idle: int, settings: Settings) -> dict[str, int]:
    """ElasticFlow's way (Gu et al. 2023): sizes of all elastic jobs anew, each time the step that adds most throughput for its GPUs.

    Returns:
        GPUs by the name of the job.
    """
    sizes = {each.job.name: each.job.gpus for each in running}
    left = idle + sum(each.spare for each in running)
    while True:
        steps = []
        for each in running:
            now = sizes[each.job.name]
            above = [size for size in each.table.sizes if now < size.gpus <= min(now + left, settings.most * each.job.gpus)]
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
