"""How an elastic job stands: who trains it, on how many hosts, how far it is, and what a start costs it."""

import dataclasses
import math
from collections.abc import Sequence

from oppa.cluster.real.spool import Elastic
from oppa.training import ledger
from oppa.training.run_folder import STOP, RunSpec

UNKNOWN_START_S = 60.0
"""What a start is taken to cost before there was one."""
RECENT = 10
"""Its pace is that of so many steps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Of one job, in one moment."""

    job: Elastic
    hosts: int
    """That it is trained on; 0: nobody trains it."""
    wanted: int
    """That it shall have."""
    training: bool
    """It has come to a step since it was started."""
    stopping: bool
    """It was asked to."""
    ending: str
    """`finished`, `failed`, `cancelled` or `given up`; empty: it is to be trained."""
    steps: int
    loss: float | None
    """Of the last step."""
    start_s: float
    """A start takes."""
    left_s: float
    """Until it is done, as it runs now."""

    @property
    def changing(self) -> bool:
        """It is on its way to another size, or to its end."""
        return self.hosts > 0 and (self.hosts != self.wanted or self.stopping)

    @property
    def settled(self) -> bool:
        """It trains, on as many hosts as it shall have."""
        return self.training and not self.changing

    @property
    def state(self) -> str:
        """In words."""
        if not self.hosts:
            return self.ending or "not trained"
        return "stopping" if self.stopping else "training" if self.training else "starting"


def status_of(job: Elastic) -> Status:
    """As its folder says; raises OppaError where that is damaged."""
    supervised, start, wanted = job.supervised(), job.start(), job.wanted()
    steps = ledger.latest_steps(job.run, 1)
    said, given_up = job.ending(), "given up" if wanted.hopeless(job.hosts) else ""
    own = said if said in ("finished", "failed") else ""
    start_s = cost_of_start(job)
    return Status(
        job=job,
        hosts=start.hosts if supervised and start is not None else 0,
        wanted=wanted.hosts,
        training=supervised and came_to_a_step(job),
        stopping=(job.run / STOP).exists(),
        ending="" if supervised else own or ("cancelled" if job.cancelled() else given_up),
        steps=steps[-1]["step"] + 1 if steps else 0,
        loss=steps[-1]["loss"] if steps else None,
        start_s=UNKNOWN_START_S if start_s is None else start_s,
        left_s=_left_s(job, ledger.latest_steps(job.run, RECENT, begin=start.size) if start is not None else []),
    )


def came_to_a_step(job: Elastic) -> bool:
    """Whether its last start did."""
    start = job.start()
    return start is not None and ledger.first_step(job.run, start.size) is not None


def cost_of_start(job: Elastic) -> float | None:
    """What a start costs this job where nothing is waited for, in seconds: the least of what was seen; None: nothing was.

    Of the last one: to its first step, from its beginning and from the last step before. Clocks of two hosts may not agree; what would be
    no time at all is not believed.
    """
    costs, start = [cost for cost in (job.wanted().start_s,) if cost is not None], job.start()
    first = ledger.first_step(job.run, start.size) if start is not None else None
    if start is not None and first is not None:
        before = [line["time"] for line in ledger.latest_steps(job.run, 1, end=start.size)]
        costs += [cost for cost in (first["time"] - at for at in (start.at, *before)) if cost > 0]
    return min(costs, default=None)


def _left_s(job: Elastic, recent: Sequence[ledger.Line]) -> float:
    """As long as the samples that are left take, at the pace of the last steps."""
    if len(recent) < 2:
        return math.inf
    total = RunSpec.read(job.run).problem.recipe.samples
    done = recent[-1]["samples"][1]
    rate = (done - recent[0]["samples"][1]) / max(recent[-1]["time"] - recent[0]["time"], 1e-9)
    return max(0, total - done) / rate if total and rate > 0 else math.inf
