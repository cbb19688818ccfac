"""The scaling controller on a real cluster: looks, decides, and acts, over and over (FlexTrain, section 5).

It keeps nothing that is not on disk: what each job shall have is written before anything is done about it, a run is asked to stop by a
file, and who trains a job is told by a lock. So it may be killed at any moment, and another one goes on. A change is a checkpoint and a
restart: the run stops behind a step, its hosts go back to Slurm, and it is started again on as many as it shall have.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.cluster.decisions import Running, Scaling, Settings, giving, grow, reclaim
from oppa.cluster.job import Job, ScaleTable
from oppa.cluster.real.comers import Comers
from oppa.cluster.real.spool import DECISIONS, FRUITLESS, LOG, Elastic, folders
from oppa.cluster.real.status import Status, came_to_a_step, cost_of_start, status_of
from oppa.cluster.real.view import OWN, View, look
from oppa.errors import EnvironmentLackingError, OppaError
from oppa.places.slurm import ask

LAUNCH_S = 30.0
"""In which a supervisor that another controller has launched says that it has begun."""
PATIENCE_S = 10.0
"""A job that grew waits this long for hosts that were idle when it was decided."""


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
        folders(spool)
        self._spool, self._settings, self._words, self._partition, self._tell, self._act = spool, settings, words, partition, tell, act
        self._comers = Comers(spool, settings.window_s, settings.counted_gpus, keep=act)
        self._answered = False
        self._told: dict[str, str] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Supervisors that it has launched, by job."""
        self.damaged: list[str] = []
        """Jobs that could not be read at the last look, by name."""

    def step(self) -> list[Status]:
        """Look once, and do what is to be done; the jobs as they were found."""
        for child in self._children.values():
            child.poll()
        found = self._found()
        try:
            view = look(self._partition)
        except EnvironmentLackingError as error:
            if not self._answered:  # it never did
                raise
            self._say(f"nothing is decided: {error.message}")
            return found
        self._answered = True
        with self._going_on("the spool"):
            self._comers.count(view)
        for status in found:
            with self._going_on(status.job.name):
                self._keep(status)
                self._make_do(status, view)
        for change in self._decide(found, view):
            with self._going_on(change.job.name):
                self._carry_out(change, {status.job.name: status for status in found}[change.job.name].job)
        return found

    @contextlib.contextmanager
    def _going_on(self, about: str) -> Iterator[None]:
        """A disk that is full, or a job that is damaged meanwhile, ends no controller: it is tried again at the next look."""
        try:
            yield
        except (OppaError, OSError) as error:
            self._say(f"{about}: {error}", about)

    def _found(self) -> list[Status]:
        """Of all jobs that can be read; the others keep nobody waiting."""
        found, self.damaged = list[Status](), []
        for folder in folders(self._spool):
            try:
                found.append(status_of(Elastic.read(folder)))
            except (OppaError, OSError) as error:
                self.damaged.append(folder.name)
                self._say(f"{folder.name}: {error}", folder.name)
        return found

    def _keep(self, status: Status) -> None:
        """See to it that a job is trained, and on as many hosts as it shall have."""
        job = status.job
        if job.cancelled() or (status.hosts and status.hosts != status.wanted):
            if self._act and status.hosts:
                job.ask_to_stop()
        elif not status.ending and not job.supervised() and not self._launching(job):
            self._start(job)

    def _launching(self, job: Elastic) -> bool:
        """Somebody was told to train it, perhaps by another controller, and has not said yet that it has begun."""
        if (child := self._children.get(job.name)) is not None:
            return child.poll() is None
        return job.begun() is None and 0 <= time.time() - job.wanted().launched_at < LAUNCH_S

    def _start(self, job: Elastic) -> None:
        try:
            job.require_unchanged_table()
        except OppaError as error:
            self._say(f"{job.name}: {error.message}", job.name)
            return
        if not self._act:
            self._say(f"{job.name}: would be started on {job.wanted().hosts} hosts", job.name)
            return
        self._learn(job)
        wanted = job.wanted()
        hosts = wanted.hosts
        if wanted.hopeless(hosts):
            self._say(f"{job.name}: given up, as {FRUITLESS} starts have come to nothing; `{job.folder / LOG}` says why", job.name)
            return
        self._say(f"{job.name}: started on {hosts} hosts", job.name)
        job.want(launches=wanted.launches + 1, launched_at=time.time())
        words = [*self._words, f"--sbatch=--comment={OWN}{job.token}"]
        command = [sys.executable, "-P", "-m", "oppa.cluster.real.supervisor", str(job.folder), str(hosts), *words]
        with (job.folder / LOG).open("ab") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._children[job.name] = child

    def _learn(self, job: Elastic) -> None:
        """From its last launch, which has ended: without a step it was in vain, unless Slurm took its hosts away."""
        begun, wanted = job.begun(), job.wanted()
        if begun is None and not wanted.launches:
            return
        hosts = begun.hosts if begun else wanted.hosts
        if begun and came_to_a_step(job):
            job.want(vain={size: starts for size, starts in wanted.vain.items() if size != hosts}, start_s=cost_of_start(job))
        elif not begun or not (begun.excused or job.ending() == "revoked"):
            job.want(vain={**wanted.vain, hosts: wanted.vain.get(hosts, 0) + 1})
            if wanted.hosts == hosts != job.hosts:
                self._say(f"{job.name}: back to {job.hosts} hosts, as a start on {hosts} has come to nothing", job.name)
                job.want(hosts=job.hosts)

    def _make_do(self, status: Status, view: View) -> None:
        """A job that grew waits neither for hosts that others were given meanwhile, or that died, nor for those beyond a limit."""
        job, held, start = status.job, view.pending(status.job.token), status.job.start()
        if held is None or start is None:
            return
        if job.cancelled():
            if self._act:
                ask("scancel", held.id, lenient=True)
            return
        to_be_had = held.for_nodes and held.nodes <= view.idle
        if start.hosts <= job.hosts or to_be_had or time.time() - start.at < PATIENCE_S:
            return
        left = job.table.fastest(min(view.idle, start.hosts - 1)) if not held.limited else None
        hosts = max(job.hosts, left.gpus if left else 0)
        why = f"Slurm says `{held.reason}`" if held.limited else "they are not to be had any more"
        self._say(f"{job.name}: back from {start.hosts} to {hosts} hosts, as {why}", job.name)
        if self._act:
            if not held.limited:
                job.excuse()
            job.want(hosts=hosts)
            ask("scancel", held.id, lenient=True)

    def _decide(self, found: Sequence[Status], view: View) -> list[Scaling]:
        """Who gives back for the first that waits; else who grows. While a job is on its way to another size, nobody does."""
        running = [_running(status) for status in found if status.settled]
        if view.waiting:
            if any(status.changing for status in found):
                return []
            return reclaim(running, giving(view.waiting[0].nodes - view.idle), unit=self._settings.unit)
        if any(status.hosts and not status.settled and not _barred(status, view) for status in found):
            return []
        change = grow(running, view.idle, self._comers.rate(), self._settings)
        return [change] if change else []

    def _carry_out(self, change: Scaling, job: Elastic) -> None:
        self._say(f"{job.name}: from {change.before} to {change.after} hosts, as {change.reason}", job.name)
        if not self._act:
            return
        facts = {"time": time.time(), "job": job.name, "before": change.before, "after": change.after, "reason": change.reason}
        with (self._spool / DECISIONS).open("a") as log:
            log.write(json.dumps({**facts, "speedup": change.speedup, "probability": change.probability}) + "\n")
        job.want(hosts=change.after)
        job.ask_to_stop()

    def _say(self, what: str, about: str = "") -> None:
        if self._told.get(about) != what:
            self._tell(what)
            self._told[about] = what


def _barred(status: Status, view: View) -> bool:
    """It waits for something else than nodes."""
    held = view.pending(status.job.token)
    return held is not None and not held.for_nodes


def _running(status: Status) -> Running:
    """As decisions know it, in hosts; of the sizes that were not tried in vain too often."""
    job, wanted = status.job, status.job.wanted()
    kept = (status.hosts, job.hosts)
    table = ScaleTable(tuple(size for size in job.table.sizes if size.gpus in kept or not wanted.hopeless(size.gpus)))
    known = Job(name=job.name, arrival_s=0.0, duration_s=0.0, gpus=job.hosts, table=table, start_s=status.start_s)
    return Running(known, status.hosts, left_s=status.left_s)
