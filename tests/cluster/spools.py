"""Elastic jobs in a spool, and a scheduler in memory."""

import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from oppa.cluster.elastic_jobs.spool import HELD, JOB, STARTED, ElasticJob, submit
from oppa.cluster.scheduler import QueuedJob, QueueSnapshot
from oppa.errors import EnvironmentLackingError
from oppa.problem.job import load_job
from oppa.training.run.run_folder import RunSpec
from oppa.trials.trial_folder import write_json

JOB_FILE = """\
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
cluster = {hosts = 2, devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
"""


def put(scales: Path, **values: object) -> ElasticJob:
    """Put a job into a spool, in the folder of the scale table."""
    return submit(scales.parent / "spool", scales.parent / "job.toml", scales, **values)  # type: ignore[arg-type]


class InMemoryScheduler:
    """Schedules in memory: its nodes are a number, its queue is a list, and its supervisors do nothing."""

    def __init__(self, *, idle: int = 0, jobs: Sequence[QueuedJob] = ()) -> None:
        self.idle, self.jobs = idle, list(jobs)
        self.answers = True
        self.exit_code: int | None = 1
        """That of its supervisors; None while they run."""
        self.starts: list[tuple[str, int]] = []
        """Names of the jobs that were started, each with its number of hosts."""
        self.cancelled: list[str] = []

    def snapshot(self) -> QueueSnapshot:
        if not self.answers:
            raise EnvironmentLackingError("`squeue` failed: slurm_load_jobs error")
        return QueueSnapshot(idle=self.idle, jobs=tuple(self.jobs))

    def start(self, job: ElasticJob, hosts: int) -> "InMemoryScheduler":
        self.starts.append((job.name, hosts))
        return self

    def poll(self) -> int | None:
        """Return the exit code that the supervisor of every job has."""
        return self.exit_code

    def cancel(self, request: QueuedJob) -> None:
        self.jobs.remove(request)
        self.cancelled.append(request.id)


class Failing(InMemoryScheduler):
    """Its supervisors begin, and come to no step."""

    def start(self, job: ElasticJob, hosts: int) -> "InMemoryScheduler":
        started(job, hosts)
        return super().start(job, hosts)


def waiting(nodes: int) -> QueuedJob:
    """Somebody else's job that waits for so many."""
    return QueuedJob(id="7", nodes=nodes, pending=True, for_nodes=True)


class Held:
    """Holds a job that trains on one host, has trained ten steps, and will train for one epoch of unknown length."""

    def __init__(self, scales: Path, *, name: str = "", hosts: int = 1) -> None:
        self.job = put(scales, name=name)
        if hosts != 1:
            self.job.set_desired(hosts=hosts)
        self.begin(hosts)
        RunSpec(uuid="a-run", problem=load_job(self.job.folder / JOB), configuration=self.job.sizes[hosts]).write(self.job.run)
        steps = [{"event": "step", "step": n, "samples": [8 * n, 8 * n + 8], "time": time.time() - 20 + n, "loss": 1.0} for n in range(10)]
        (self.job.run / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))

    def begin(self, hosts: int, *, size: int = 0, ago_s: float = 100.0) -> None:
        """Somebody trains it on so many hosts; the ledger had so many bytes before."""
        self._descriptor: int | None = os.open(self.job.folder / HELD, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        started(self.job, hosts, size=size, ago_s=ago_s)

    def end(self) -> None:
        """Nobody trains it any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def started(job: ElasticJob, hosts: int, *, size: int = 0, ago_s: float = 100.0) -> None:
    """Write what a supervisor writes when it starts a job."""
    facts = {"hosts": hosts, "at": time.time() - ago_s, "size": size, "launch": job.desired().launches}
    write_json(job.folder / STARTED, {"process": "1:1", **facts})
