"""Train an elastic job on a number of hosts: `python -P -m MODULE FOLDER HOSTS [SETTING...]` becomes `oppa train`.

It locks the job, records its process, and keeps the lock when it becomes `oppa train`. Other processes can thus detect that the job is
trained, and by which process, even if its launcher has ended. If the job is locked already, it exits at once.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from oppa.cluster.elastic_jobs.spool import ENDING, HELD, JOB, LOG, STARTED, ElasticJob
from oppa.pipeline import stored_schedules
from oppa.private_files import close_to_others, open_private
from oppa.training.run import ledger
from oppa.trials.processes import this_process
from oppa.trials.trial_folder import write_json

LOOKS = 20
"""Number of retries for the lock, which a process that tests it may hold for a moment."""
MODULE = "oppa.cluster.elastic_jobs.supervisor"


def start_supervisor(job: ElasticJob, hosts: int, settings: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the process that trains a job on a number of hosts; it continues if this one ends.

    Args:
        settings: Keys of the job file that request the hosts, such as `launcher.name=slurm`.
    """
    command = [sys.executable, "-P", "-m", MODULE, str(job.folder), str(hosts), *settings]
    with os.fdopen(open_private(job.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def main(folder: Path, hosts: int, settings: list[str]) -> None:
    """Lock the job, and become `oppa train`."""
    job = ElasticJob.read(folder)
    close_to_others(folder)  # an older oppa may have made it
    descriptor = open_private(folder / HELD, os.O_RDWR | os.O_CREAT)
    for left in range(LOOKS, -1, -1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                sys.exit(0)
            time.sleep(0.05)  # perhaps another process tests the lock
    os.set_inheritable(descriptor, True)
    stored_schedules.copy(folder, job.run)
    configuration = folder / f"on-{hosts}.json"
    write_json(configuration, job.sizes[hosts].to_dict())
    facts = {"hosts": hosts, "at": time.time(), "size": ledger.size(job.run), "launch": job.desired().launches}
    write_json(folder / STARTED, {"process": str(this_process()), **facts})
    ending = os.open(folder / ENDING, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(ending, sys.stdout.fileno())
    train = [sys.executable, "-P", "-m", "oppa", "train", str(folder / JOB), str(configuration)]
    changes = [word for setting in (f"cluster.hosts={hosts}", *settings) for word in ("--set", setting)]
    line = ["--", *job.command] if job.command else []
    os.chdir(job.directory)
    os.execv(sys.executable, [*train, "--run", str(job.run), "--json", *changes, *line])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
