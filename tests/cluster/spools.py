"""Elastic jobs in a spool, and what a controller is told of the nodes, without a Slurm."""

import dataclasses
import fcntl
import json
import os
import time
from pathlib import Path

from oppa.cluster.slurm.queue_snapshot import QueuedJob, QueueSnapshot
from oppa.cluster.slurm.spool import HELD, STARTED, ElasticJob, submit
from oppa.trials.trial_folder import write_json

JOB_FILE = """\
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
cluster = {hosts = 2, devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
"""


def put(scales: Path, **values: object) -> ElasticJob:
    """Into a spool beside the scale table."""
    return submit(scales.parent / "spool", scales.parent / "job.toml", scales, **values)  # type: ignore[arg-type]


@dataclasses.dataclass
class Slurm:
    """What the controller is told of the nodes."""

    view: QueueSnapshot

    def __call__(self, _: str) -> QueueSnapshot:
        return self.view


def waiting(nodes: int) -> QueuedJob:
    """Somebody else's job that waits for so many."""
    return QueuedJob(id="7", state="PENDING", nodes=nodes, reason="Resources", elastic="")


class Held:
    """A job that somebody trains on one host, and has trained ten steps."""

    def __init__(self, scales: Path) -> None:
        self.job = put(scales)
        self.begin(1)
        self.job.run.mkdir()
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
    """What a supervisor writes."""
    facts = {"hosts": hosts, "at": time.time() - ago_s, "size": size, "launch": job.desired().launches}
    write_json(job.folder / STARTED, {"process": "1:1", **facts})
