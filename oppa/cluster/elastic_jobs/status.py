"""Read the status of an elastic job: its number of hosts, its progress, and the cost of a start."""

import dataclasses
import math
from collections.abc import Sequence

from oppa.cluster.elastic_jobs.spool import ElasticJob
from oppa.errors import MeasurementError
from oppa.regular_file import parse_json
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS, STOP, RunSpec
from oppa.trials import untrusted_file
from oppa.trials.trial_folder import ABILITIES, LINE_BYTES, SPEC

UNKNOWN_START_S = 60.0
"""Assumed cost of a start in seconds, until one was observed."""
RECENT = 10
"""Number of last steps from which the pace is computed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Describes the status of one job at one moment."""

    job: ElasticJob
    hosts: int
    """Number of hosts that it is trained on; 0 if it is not trained."""
    desired: int
    """Desired number of hosts."""
    training: bool
    """True if it has taken a step since its last start."""
    stopping: bool
    """True if a stop was requested."""
    ending: str
    """`finished`, `failed`, `cancelled` or `given up`; empty if it should be trained."""
    steps: int
    """Number of steps so far."""
    loss: float | None
    """Loss of the last step; None before the first."""
    start_s: float
    """Cost of a start in seconds."""
    left_s: float
    """Seconds until it ends, at its present pace; infinite if unknown."""
    is_elastic: bool = True
    """False if the user's own trainer does not declare that it resumes on another number of ranks."""

    @property
    def changing(self) -> bool:
        """Return True if the job is changing its size or stopping."""
        return self.hosts > 0 and (self.hosts != self.desired or self.stopping)

    @property
    def settled(self) -> bool:
        """Return True if the job trains on the desired number of hosts."""
        return self.training and not self.changing

    @property
    def state(self) -> str:
        """Return the state in words."""
        if not self.hosts:
            return self.ending or "not trained"
        return "stopping" if self.stopping else "training" if self.training else "starting"


def status_of(job: ElasticJob) -> Status:
    """Read the status of a job from its folder; raises OppaError if that is damaged."""
    supervised, start, desired = job.supervised(), job.start(), job.desired()
    steps = ledger.latest_steps(job.run, 1)
    ended, given_up = job.ending(), "given up" if desired.keeps_failing(job.hosts) else ""
    final = ended if ended in ("finished", "failed") else ""
    cost = last_start_cost(job)
    start_s = desired.with_start(*cost)["start_s"] if cost is not None else desired.start_s
    return Status(
        job=job,
        hosts=start.hosts if supervised and start is not None else 0,
        desired=desired.hosts,
        training=supervised and came_to_a_step(job),
        stopping=(job.run / STOP).exists(),
        ending="" if supervised else final or ("cancelled" if job.cancelled() else given_up),
        steps=steps[-1]["step"] + 1 if steps else 0,
        loss=steps[-1]["loss"] if steps else None,
        start_s=UNKNOWN_START_S if start_s is None else start_s,
        is_elastic=not job.is_own or _declares_elastic(job),
        left_s=_left_s(job, ledger.latest_steps(job.run, RECENT, begin=start.size) if start is not None else []),
    )


def came_to_a_step(job: ElasticJob) -> bool:
    """Return True if the last start has taken a step."""
    start = job.start()
    return start is not None and ledger.first_step(job.run, start.size) is not None


def last_start_cost(job: ElasticJob) -> tuple[int, float] | None:
    """Return the size of the ledger before the last start, and its cost in seconds, without the wait for hosts; None if it is unknown.

    The cost is the smaller of two spans until its first step: since the attempt began, and since the previous step. Spans that are not
    positive are ignored, as the clocks of two hosts may differ.
    """
    start = job.start()
    first = ledger.first_step(job.run, start.size) if start is not None else None
    if start is None or first is None:
        return None
    before = [first["time"] - line["time"] for line in ledger.latest_steps(job.run, 1, end=start.size)]
    costs = [cost for cost in (*_since_attempt_s(job, first), *before) if cost > 0]
    return (start.size, min(costs)) if costs else None


def _since_attempt_s(job: ElasticJob, first: ledger.Line) -> list[float]:
    """Return the seconds from the beginning of the newest attempt to a step, both by the clock of the file system; none if unknown."""
    last, newest = ledger.last(job.run), max((job.run / ATTEMPTS).glob(f"*/{SPEC}"), default=None)
    try:
        written_at = (job.run / ledger.FILE).stat().st_mtime
        begun_at = newest.stat().st_mtime if newest is not None else None
    except OSError:
        return []
    if last is None or begun_at is None or "time" not in last:
        return []
    return [written_at - (last["time"] - first["time"]) - begun_at]


def _declares_elastic(job: ElasticJob) -> bool:
    """Return True if the trainer has declared the ability `elastic` in its newest attempt; its file may hold anything."""
    declared = sorted((job.run / ATTEMPTS).glob(f"*/{ABILITIES}"), key=lambda path: path.parent.name)
    try:
        text = untrusted_file.read(declared[-1], limit_bytes=LINE_BYTES) if declared else None
        return text is not None and parse_json(text)["abilities"]["elastic"] is True
    except (MeasurementError, ValueError, KeyError, TypeError):
        return False


def _left_s(job: ElasticJob, recent: Sequence[ledger.Line]) -> float:
    """Return the seconds that the remaining samples take, at the pace of the last steps; infinite if unknown."""
    if len(recent) < 2:
        return math.inf
    total = RunSpec.read(job.run).problem.run_options.samples
    done = recent[-1]["samples"][1]
    rate = (done - recent[0]["samples"][1]) / max(recent[-1]["time"] - recent[0]["time"], 1e-9)
    return max(0, total - done) / rate if total and rate > 0 else math.inf
