"""Whatever is killed while an own trainer grows on Slurm: nothing is left running, and each sample is taken once."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from oppa.training.run.run_folder import ATTEMPTS
from tests.cluster.controlled import Controlled
from tests.cluster.own_jobs import Job, require_trained
from tests.launchers.slurm_cluster import SlurmCluster, until
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.faults, pytest.mark.timeout(600)]

VICTIMS = ("rank", "agent", "supervisor", "controller", "node")
PHASES = {
    "asked": "../resize.json",
    "starting": "0002/hold.json",
    "waiting": "0002/abilities.json",
    "leaving": "0001/leave.json",
    "left": "0001/left.json",
    "resumed": "0002/attempt.json",
}
"""Files of the attempts that show how far the change from one host to three has come."""
CASES = [(victim, phase) for victim in VICTIMS for phase in PHASES]


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


@pytest.fixture
def growing(slurm: SlurmCluster, tmp_path: Path) -> Iterator[tuple[Job, Controlled]]:
    """A job on one host, whose other hosts have just become idle."""
    job = Job(slurm, tmp_path, 8 * 900)
    job.write_table()
    other = slurm.submit("sleep 600", "--nodes=3", "--exclusive")
    slurm.wait_for(other, "RUNNING")
    controlled = Controlled(job.submit(), slurm, "--set", "scaling.threshold=0")
    try:
        controlled.reaches(1)
        slurm.cancel(other)
        yield job, controlled
    finally:
        controlled.end()
        for node in slurm.nodes:
            slurm.mend(node)
        slurm.cancel(*slurm.jobs())
        slurm.wait_until_idle()


@pytest.mark.parametrize(("victim", "phase"), sampled(CASES, lambda victim, _: {victim in ("controller", "node")}))
def test_a_kill_while_a_job_grows_loses_no_sample(victim: str, phase: str, growing: tuple[Job, Controlled]) -> None:
    job, controlled = growing
    chance = random.Random(f"{victim} {phase} {os.environ.get('OPPA_FAULT_SEED', '0')}")
    attempts = job.spool / "elastic" / "run" / ATTEMPTS
    until(lambda: (attempts / PHASES[phase]).resolve().exists(), controlled.log.read_text, timeout_s=120)
    time.sleep(chance.uniform(0.0, 0.5))
    if victim == "controller":
        controlled.kill()
    elif victim == "node":
        lost = chance.choice(job.slurm.nodes)
        job.slurm.lose(lost)
        steps = len(controlled.lines())
        until(lambda: len(controlled.lines()) > steps + 20, controlled.log.read_text, timeout_s=180)
        job.slurm.mend(lost)
    elif victims := of_job(job, victim):  # ranks may all have left
        os.kill(chance.choice(victims), signal.SIGKILL)
    else:
        assert victim == "rank"
    assert controlled.process.wait(timeout=400) == 0, controlled.log.read_text()
    assert require_trained(job, controlled)
    assert job.taken() == list(range(job.samples))
    assert not of_job(job, "rank") and not of_job(job, "agent") and not of_job(job, "supervisor")
