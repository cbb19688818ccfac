"""Whatever is killed while an own trainer grows or shrinks on Slurm: nothing is left running, and each sample is taken once."""

import contextlib
import dataclasses
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from oppa.training.run import ledger
from oppa.training.run.resize import ResizeRequest
from oppa.training.run.run_folder import ATTEMPTS, attempts_of
from tests.cluster.controlled import Controlled, hosts_of
from tests.cluster.own_jobs import Job, require_trained, without_repeats
from tests.launchers.slurm_cluster import SlurmCluster, until
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.faults, pytest.mark.timeout(600)]

VICTIMS = ("rank", "agent", "supervisor", "controller", "node")
PHASES = {
    "starting": (1, "hold.json"),
    "waiting": (1, "abilities.json"),
    "leaving": (0, "leave.json"),
    "left": (0, "left.json"),
    "resumed": (1, "attempt.json"),
}
"""Files of the present (0) or of the next attempt (1) that show how far a change has come, once it was asked for."""
GROWS = [(victim, phase) for victim in VICTIMS for phase in ("asked", *PHASES)]
SHRINKS = [(victim, phase) for victim, phase in GROWS if phase != "waiting"]
"""Ranks that give a host back leave without waiting for the next ones."""


@dataclasses.dataclass(frozen=True)
class Change:
    """Holds a job that is asked to change the number of its hosts."""

    job: Job
    controlled: Controlled
    hosts: int
    """Number of hosts before the change."""
    attempt: int
    """Number of the attempt that trains before the change."""
    others: tuple[str, ...] = ()
    """Jobs of Slurm that have the other hosts, or wait for one."""

    def reaches(self, phase: str) -> None:
        """Wait until the change has come so far."""
        run = self.job.run

        def has_come() -> bool:
            if phase == "asked":
                return (request := ResizeRequest.read(run)) is not None and request.hosts != self.hosts
            number, name = PHASES[phase]
            return (run / ATTEMPTS / f"{self.attempt + number:04}" / name).exists()

        until(has_come, self.controlled.log.read_text, timeout_s=120)


def of_job(job: Job, kind: str) -> list[int]:
    """Return the process numbers of the job's ranks, agents or supervisor, the oldest first."""
    words = {
        "rank": lambda argv: argv[1].endswith("elastic_trainer.py"),
        "agent": lambda argv: argv[1] == "-P" and "agent.main()" in argv[3],
        "supervisor": lambda argv: argv[2:5] == ["-m", "oppa", "train"],
    }
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "create_time"]):
        argv, environment = process.info["cmdline"] or [], process.info["environ"] or {}
        if environment.get("SLURM_CONF") == job.slurm.environment["SLURM_CONF"] and len(argv) > 3 and words[kind](argv):
            found.append((process.info["create_time"], process.pid))
    return [pid for _, pid in sorted(found)]


@contextlib.contextmanager
def begun(slurm: SlurmCluster, folder: Path, *nodes: int) -> Iterator[tuple[Job, Controlled, list[str]]]:
    """Yield a job on one host, and other jobs that have so many nodes each."""
    job = Job(slurm, folder, 8 * 900)
    job.write_table()
    others = [slurm.submit("sleep 600", f"--nodes={each}", "--exclusive") for each in nodes]
    for other in others:
        slurm.wait_for(other, "RUNNING")
    controlled = Controlled(job.submit(), slurm, "--set", "scaling.threshold=0")
    try:
        controlled.reaches(1)
        yield job, controlled, others
    finally:
        controlled.end()
        for node in slurm.nodes:
            slurm.mend(node)
        slurm.cancel(*slurm.jobs())
        slurm.wait_until_idle()


@pytest.fixture
def growing(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Change]:
    """A job on one host, whose other hosts have just become idle."""
    with begun(slurm, tmp_path, 3) as (job, controlled, others):
        slurm.cancel(*others)
        yield Change(job, controlled, hosts=1, attempt=1)


@pytest.fixture
def shrinking(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Change]:
    """A job on two hosts, of which another job has just requested one."""
    with begun(slurm, tmp_path, 2, 1) as (job, controlled, (other, another)):
        slurm.cancel(another)
        controlled.reaches(2)
        attempt = max(attempts_of(job.run))
        comer = slurm.submit("sleep 600", "--nodes=1", "--exclusive")
        yield Change(job, controlled, hosts=2, attempt=attempt, others=(other, comer))


def require_no_loss(victim: str, phase: str, change: Change) -> list[int]:
    """Kill something, and check that nothing is left running and that each sample is taken once.

    Returns:
        The numbers of hosts in order, those of steps that were lost and taken again included.
    """
    job, controlled = change.job, change.controlled
    chance = random.Random(f"{victim} {phase} {os.environ.get('OPPA_FAULT_SEED', '0')}")
    change.reaches(phase)
    time.sleep(chance.uniform(0.0, 0.5))
    if victim == "controller":
        controlled.kill()
    elif victim == "node":
        lost = chance.choice(job.slurm.nodes)
        job.slurm.lose(lost)
        job.slurm.cancel(*change.others)  # one of them may have the only host on which the job can train meanwhile
        steps = len(controlled.lines())
        until(lambda: len(controlled.lines()) > steps + 20, controlled.log.read_text, timeout_s=180)
        job.slurm.mend(lost)
    elif victims := of_job(job, victim):  # ranks may all have left
        os.kill(chance.choice(victims), signal.SIGKILL)
    else:
        assert victim == "rank"
    until(lambda: controlled.process.poll() is not None or controlled.hosts() != change.hosts, controlled.log.read_text, timeout_s=180)
    job.hurry()
    assert controlled.process.wait(timeout=400) == 0, controlled.log.read_text()
    require_trained(job, controlled)
    assert job.taken() == list(range(job.samples))
    assert not of_job(job, "rank") and not of_job(job, "agent") and not of_job(job, "supervisor")
    return without_repeats([hosts_of(line) for line in controlled.lines() if line["event"] == ledger.STEP])


# test_resize_on_slurm.py kills a rank while a run grows
@pytest.mark.parametrize(("victim", "phase"), sampled(GROWS, lambda victim, _: {victim} & {"node"}))
def test_a_kill_while_a_job_grows_loses_no_sample(victim: str, phase: str, growing: Change) -> None:
    assert require_no_loss(victim, phase, growing)


@pytest.mark.parametrize(("victim", "phase"), sampled(SHRINKS, lambda *_: {"one"}))
def test_a_kill_while_a_job_gives_a_host_back_loses_no_sample(victim: str, phase: str, shrinking: Change) -> None:
    sizes = require_no_loss(victim, phase, shrinking)
    assert sizes[:2] == [1, 2] and (victim == "node" or 1 in sizes[2:])
