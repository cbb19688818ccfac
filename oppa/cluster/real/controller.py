"""The scaling controller on a real cluster: looks, decides, and acts, over and over (FlexTrain, section 5).

It keeps nothing that is not on disk: what each job shall have is written before anything is done about it, a run is asked to stop by a
file, and who trains a job is told by a lock. So it may be killed at any moment, and another one goes on. A change is a checkpoint and a
restart: the run stops behind a step, its hosts go back to Slurm, and it is started again on as many as it shall have.
"""

import dataclasses
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.cluster.arrivals import Arrivals
from oppa.cluster.decisions import Running, Scaling, Settings, giving, grow, reclaim
from oppa.cluster.job import Job
from oppa.cluster.real.spool import DECISIONS, LOG, Elastic, jobs
from oppa.cluster.real.view import OWN, View, look
from oppa.errors import EnvironmentLackingError, OppaError
from oppa.places.slurm import ask
from oppa.training import ledger
from oppa.training.run_folder import STOP, RunSpec

FRUITLESS = 3
"""Starts in a row that may come to no step, before a job is given up."""
PATIENCE_S = 10.0
"""A job that grew waits this long for hosts that were idle when it was decided."""
UNKNOWN_START_S = 60.0
"""What a start is taken to cost before there was one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Of one elastic job."""

    job: Elastic
    hosts: int
    """That it is trained on; 0: nobody trains it."""
    settled: bool
    """It trains, on as many hosts as it shall have."""
    start_s: float
    """A start takes."""
    left_s: float
    """Until it is done, as it runs now."""
    ending: str
    """`finished`, `failed`, or nothing yet."""


class Controller:
    """Of one spool.

    Args:
        words: For `oppa train`, such as `--launcher slurm --sbatch --partition=gpu`.
        partition: Whose nodes are shared; all unless given.
        tell: Hears what is decided and done.
        act: Whether to do it, or only to say it.
    """

    def __init__(
        self,
        spool: Path,
        settings: Settings,
        *,
        words: Sequence[str] = (),
        partition: str = "",
        tell: Callable[[str], None] = lambda _: None,
        act: bool = True,
    ) -> None:
        self._spool, self._settings, self._words, self._partition, self._tell, self._act = spool, settings, words, partition, tell, act
        self._arrivals = Arrivals(settings.window_s, settings.counted_gpus)
        self._known: set[str] | None = None
        self._told = ""
        self._children: list[subprocess.Popen[bytes]] = []

    def step(self) -> list[Status]:
        """Look once, and do what is to be done; the jobs as they were found."""
        for child in self._children:
            child.poll()
        found = [self._status(job) for job in jobs(self._spool)]
        try:
            view = look(self._partition)
        except EnvironmentLackingError as error:
            if self._known is None:  # it never answered
                raise
            self._say(f"nothing is decided: {error.message}")
            return found
        self._count(view)
        for status in found:
            self._keep(status)
            self._make_do(status, view)
        for change in self._decide(found, view):
            self._carry_out(change, {status.job.name: status for status in found}[change.job.name].job)
        return found

    def _status(self, job: Elastic) -> Status:
        started, ending = job.started(), job.ending()
        lines = _lines(job)
        since = float(started.get("at", time.time())) if started is not None else 0.0
        steps = [line for line in lines if line["event"] == ledger.STEP]
        training = started is not None and any(line["time"] > since for line in steps[-1:])
        hosts = int(started.get("hosts", 0)) if started is not None else 0
        return Status(
            job=job,
            hosts=hosts,
            settled=training and hosts == job.wanted() and not (job.run / STOP).exists(),
            start_s=_start_s(lines, since),
            left_s=_left_s(job, steps),
            ending="" if started is not None else ending or ("failed" if job.fruitless() >= FRUITLESS else ""),
        )

    def _keep(self, status: Status) -> None:
        """See to it that a job is trained, and on as many hosts as it shall have."""
        job = status.job
        if status.ending:
            return
        if status.hosts and status.hosts != job.wanted():
            self._ask_to_stop(job)
        elif not status.hosts and job.started() is None:
            self._start(job)

    def _ask_to_stop(self, job: Elastic) -> None:
        if self._act and job.run.is_dir():
            (job.run / STOP).touch()

    def _start(self, job: Elastic) -> None:
        try:
            job.require_unchanged_table()
        except OppaError as error:
            self._say(f"{job.name}: {error.message}")
            return
        hosts, last = job.wanted(), job.last_start()
        if not self._act:
            self._say(f"{job.name}: would be started on {hosts} hosts")
            return
        if last is not None:
            fruitful = any(line["event"] == ledger.STEP and line["time"] > last for line in _lines(job))
            job.count(0 if fruitful else job.fruitless() + 1)
            if job.fruitless() >= FRUITLESS:
                self._say(f"{job.name}: given up, as {FRUITLESS} starts have come to nothing; `{job.folder / LOG}` says why")
                return
        self._say(f"{job.name}: started on {hosts} hosts")
        words = [*self._words, f"--sbatch=--comment={OWN}{job.token}"]
        command = [sys.executable, "-P", "-m", "oppa.cluster.real.supervisor", str(job.folder), str(hosts), *words]
        with (job.folder / LOG).open("ab") as log:
            self._children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    def _make_do(self, status: Status, view: View) -> None:
        """A job that grew, and whose hosts somebody else was given meanwhile, waits no longer than for what it asked for."""
        job = status.job
        held = next((each for each in view.jobs if each.elastic == job.token and each.state == "PENDING"), None)
        last = job.last_start()
        if (
            status.settled
            or held is None
            or last is None
            or status.hosts <= job.hosts
            or time.time() - last < PATIENCE_S
            or held.nodes <= view.idle
        ):
            return
        self._say(f"{job.name}: back to {job.hosts} hosts, as {status.hosts} are not to be had any more")
        if self._act:
            job.want(job.hosts)
            job.count(-1)  # this start was not in vain for its own fault
            ask("scancel", held.id, lenient=True)

    def _count(self, view: View) -> None:
        """Arrivals since the last look; those that were there at the first are none."""
        now = time.time()
        others = view.others(self._known or ())
        for job in others if self._known is not None else ():
            self._arrivals.submitted(now, job.nodes)
        self._known = (self._known or set()) | {job.id for job in others}

    def _decide(self, found: Sequence[Status], view: View) -> list[Scaling]:
        """Who gives back for the first that waits; else who grows. While a job is on its way to another size, nobody does."""
        running = [_running(status) for status in found if status.settled]
        if view.waiting:
            changing = any(status.hosts and (status.hosts != status.job.wanted() or (status.job.run / STOP).exists()) for status in found)
            return [] if changing else reclaim(running, giving(view.waiting[0].nodes - view.idle), unit=self._settings.unit)
        if any(status.hosts and not status.settled for status in found):
            return []
        change = grow(running, view.idle, self._arrivals.rate(time.time()), self._settings)
        return [change] if change else []

    def _carry_out(self, change: Scaling, job: Elastic) -> None:
        self._say(f"{job.name}: from {change.before} to {change.after} hosts, as {change.reason}")
        if not self._act:
            return
        facts = {"time": time.time(), "job": job.name, "before": change.before, "after": change.after, "reason": change.reason}
        with (self._spool / DECISIONS).open("a") as log:
            log.write(json.dumps({**facts, "speedup": change.speedup, "probability": change.probability}) + "\n")
        job.want(change.after)
        self._ask_to_stop(job)

    def _say(self, what: str) -> None:
        if what != self._told:
            self._tell(what)
            self._told = what


def _lines(job: Elastic) -> list[ledger.Line]:
    return ledger.read(job.run) if (job.run / ledger.FILE).exists() else []


def _running(status: Status) -> Running:
    """As decisions know it, in hosts."""
    job = status.job
    known = Job(name=job.name, arrival_s=0.0, duration_s=0.0, gpus=job.hosts, table=job.table, start_s=status.start_s)
    return Running(known, status.hosts, left_s=status.left_s)


def _start_s(lines: Sequence[Mapping[str, Any]], since: float) -> float:
    """What a start costs this job where nothing is waited for: the least of what was seen.

    From the last step before a change to the first behind it, and from the present start, `since`, to its first step.
    """
    times = [line["time"] for line in lines if line["event"] == ledger.STEP]
    costs = [min((at for at in times if at > since), default=math.inf) - since] if since else []
    for begin in (line["time"] for line in lines if line["event"] == ledger.STARTED):
        before, behind = [at for at in times if at < begin], [at for at in times if at > begin]
        costs += [min(behind) - max(before)] if before and behind else []
    least = min(costs, default=math.inf)
    return least if math.isfinite(least) else UNKNOWN_START_S


def _left_s(job: Elastic, steps: Sequence[Mapping[str, Any]]) -> float:
    """As long as the samples that are left take, at the pace of the last steps."""
    recent = steps[-10:]
    if len(recent) < 2:
        return math.inf
    total = RunSpec.read(job.run).problem.recipe.samples
    done = recent[-1]["samples"][1]
    rate = (done - recent[0]["samples"][1]) / max(recent[-1]["time"] - recent[0]["time"], 1e-9)
    return max(0, total - done) / rate if total and rate > 0 else math.inf
