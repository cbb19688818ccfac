"""Request hosts from Slurm with a batch job that only holds them while this tuner is alive."""

import contextlib
import datetime
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm
from oppa.problem.cluster import Cluster
from oppa.trials.guarded_process import GuardedProcess

ALIVE_S = 10
"""Seconds between two touches of the heartbeat file."""
GONE_S = 90
"""Seconds without a touch of the heartbeat file after which the job ends; a network file system may show a touch a minute late."""

SOON_S = 60.0
"""Seconds until an expected start that count as now, also because the clocks of two hosts differ."""

_HOLD = """\
#!/bin/sh
# Holds hosts while `oppa tune` touches its heartbeat file; the trials are steps of this job.
# A touch shows as a change of the time of the file, so that the clocks of this node and of the file server are never compared.
# A network file system may fail for a while, and so may `stat`.
quiet=0
while [ $quiet -lt {gone} ]; do
    if now=$(stat -c %Y {sign}) && [ "$now" != "$last" ]; then
        last=$now quiet=0
    fi
    quiet=$((quiet + 5))
    sleep 5
done
"""
_SHOW = """\
import contextlib, pathlib, sys, time
while True:
    with contextlib.suppress(OSError):
        pathlib.Path(sys.argv[1]).touch()
    time.sleep({alive})
"""


def require_feasible(cluster: Cluster, options: Sequence[str], *, slots: int) -> None:
    """Refuse a request that Slurm would never grant, before the tuner waits for it; raises EnvironmentLackingError with Slurm's reason."""
    slurm.ask("sbatch", "--test-only", *request_words(cluster, options, slots=slots), "--wrap=true")


def expected_delay(cluster: Cluster, options: Sequence[str]) -> str:
    """Return why Slurm would not grant hosts now; empty if it would, or prints no estimate.

    The estimate counts what idle nodes do not show: partition, constraints, reservations, limits, and jobs that run.
    """
    try:
        answer = slurm.ask("sbatch", "--test-only", *request_words(cluster, options, slots=1), "--wrap=true", errors=True)
    except EnvironmentLackingError as error:
        return error.message
    found = re.search(r"to start at (\d+-\d+-\d+T\d+:\d+:\d+)", answer)
    if found is None or datetime.datetime.fromisoformat(found[1]).timestamp() - time.time() <= SOON_S:
        return ""
    return f"Slurm expects to grant them at {found[1].replace('T', ' ')}"


@contextlib.contextmanager
def slurm_job(
    cluster: Cluster, options: Sequence[str], *, slots: int, name: str, folder: Path, grace_s: float, on_tick: Callable[[], None]
) -> Iterator[str]:
    """Request hosts for `slots` parallel trials, wait until Slurm grants them, and yield the id of their job.

    Args:
        options: Additional options for sbatch, such as `--partition=gpu`.
        folder: Folder on a file system that all hosts share.

    Raises:
        EnvironmentLackingError: Slurm refuses the job, or the job waits for a reason that never resolves.
    """
    # a name of its own: a later request must not keep alive the job of a process that was killed
    sign, log = folder / f"slurm-{os.urandom(4).hex()}.alive", folder / "slurm.log"
    sign.touch()
    guard = GuardedProcess("the heartbeat", heartbeat(sign), environment={}, grace_s=grace_s, log=log)
    job = ""
    try:
        requeue = [] if "--no-requeue" in options else ["--requeue"]
        named = (f"--job-name=oppa-{name}", f"--output={log}", "--open-mode=append")
        words = [*request_words(cluster, options, slots=slots), *named, *requeue]
        job = _submit(words, script(sign))
        slurm.wait_until_running(job, on_tick)
        yield job
    finally:
        if job:
            slurm.ask("scancel", job, lenient=True)
        guard.close()
        sign.unlink(missing_ok=True)


def heartbeat(sign: Path) -> list[str]:
    """Return the command that touches the heartbeat file, also after its file system failed."""
    return [sys.executable, "-I", "-S", "-c", _SHOW.format(alive=ALIVE_S), str(sign)]


def script(sign: Path) -> str:
    """Return the script of a job that holds hosts while its heartbeat file is touched."""
    return _HOLD.format(sign=shlex.quote(str(sign.resolve())), gone=GONE_S)


def request_words(cluster: Cluster, options: Sequence[str], *, slots: int) -> list[str]:
    """Return sbatch options for what the job needs. The user's own options come last, so that they take precedence."""
    cpus = math.ceil(sum(cluster.cpus) or cluster.devices_per_host)
    states_gpus = any(re.match(r"--(gpus(-per-(node|socket|task))?=|gres=(.*,)?gpu\b)", option) for option in options)
    gpus = [] if states_gpus else [f"--gpus-per-node={cluster.devices_per_host}"]  # Slurm adds both, and refuses typed and untyped GPUs
    devices = gpus if cluster.on_cuda else [f"--cpus-per-task={cpus}"]
    return [f"--nodes={cluster.hosts * slots}", "--ntasks-per-node=1", *devices, *options]


def _submit(words: Sequence[str], script: str) -> str:
    try:
        return slurm.ask("sbatch", "--parsable", *words, script=script).strip().partition(";")[0]
    except EnvironmentLackingError as error:
        hint = f"oppa ran `sbatch {shlex.join(words)}`; change [launcher.options]"
        raise EnvironmentLackingError(f"Slurm refuses the job: {error.message}", hint=hint) from None
