"""A run on Slurm that is asked for other hosts while it trains, without a controller."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oppa.control.own_trainer.run_book import EARLY_FAILED
from oppa.problem.configuration import Configuration
from oppa.training.run import ledger
from oppa.training.run.resize import PresentSize, ResizeRequest
from oppa.training.run.run_folder import STOP
from tests.cluster.controlled import hosts_of
from tests.cluster.own_jobs import PLAIN, Job
from tests.launchers.slurm_cluster import SlurmCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.timeout(300)]


class Trained:
    """Runs `oppa train` on one host of Slurm."""

    def __init__(self, job: Job) -> None:
        self.run = job.folder / "run"
        words = ["train", str(job.job), "--run", str(self.run), "--json", "--set", "launcher.name=slurm", "--", *job.command]
        environment = {**job.slurm.environment, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oppa", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def events(self, kind: str) -> list[ledger.Line]:
        lines = ledger.read(self.run) if (self.run / ledger.FILE).exists() else []
        return [line for line in lines if line["event"] == kind]

    def reaches(self, hosts: int) -> None:
        until(lambda: [hosts_of(line) for line in self.events(ledger.STEP)][-1:] == [hosts], timeout_s=60)

    def ask(self, hosts: int) -> ResizeRequest:
        request = ResizeRequest(hosts=hosts, configuration=Configuration(dp=hosts, global_batch=8, micro_batch=2))
        request.write(self.run)
        return request

    def ended(self) -> int:
        _, printed = self.process.communicate(timeout=60)
        assert "Traceback" not in printed, printed
        return self.process.returncode


@pytest.fixture
def job(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Job]:
    yield Job(slurm, tmp_path, 8 * 100_000, PLAIN)
    slurm.cancel(*slurm.jobs())


@pytest.fixture
def trained(job: Job) -> Iterator[Trained]:
    made = Trained(job)
    yield made
    made.process.kill()
    made.process.communicate()


def test_hosts_that_are_refused_or_no_longer_requested_cost_no_training_and_others_are_granted(
    trained: Trained, slurm: SlurmCluster
) -> None:
    trained.reaches(1)
    refused = trained.ask(9)
    until(lambda: (found := PresentSize.read(trained.run)) and found.refused == refused.id, timeout_s=60)
    # A request that is withdrawn cancels its job.
    other = slurm.submit("sleep 300", "--nodes=3", "--exclusive")
    slurm.wait_for(other, "RUNNING")
    before = slurm.jobs()
    trained.ask(4)
    until(lambda: slurm.jobs() - before, timeout_s=60)
    trained.ask(1)
    until(lambda: slurm.jobs() == before, timeout_s=60)
    seen = len(trained.events(ledger.STEP))
    until(lambda: len(trained.events(ledger.STEP)) > seen + 10)
    assert not trained.events(ledger.CHANGED) and len(trained.events(ledger.STARTED)) == 1
    slurm.cancel(other)
    # Others are granted, and given back.
    trained.ask(2)
    trained.reaches(2)
    trained.ask(1)
    trained.reaches(1)
    (trained.run / STOP).touch()
    assert trained.ended() == 130
    steps = [line for line in ledger.standing(ledger.read(trained.run)) if line["event"] == ledger.STEP]
    assert ledger.require_whole(steps) == len(steps) * 8
    until(lambda: not slurm.jobs())


def test_ranks_that_cannot_start_while_others_run_are_restarted_cold(job: Job) -> None:
    job.command.append("--dies-early")
    trained = Trained(job)
    try:
        trained.reaches(1)
        trained.ask(2)
        assert trained.ended() == 130, "it has stopped, and another process goes on"
        (failed,) = trained.events(EARLY_FAILED)
        assert "the port is taken" in failed["failure"]
        assert trained.events(ledger.ENDED) and not trained.events(ledger.CHANGED)
    finally:
        trained.process.kill()


def test_hosts_on_which_a_rank_dies_in_its_first_step_are_returned(job: Job, slurm: SlurmCluster) -> None:
    job.command += ["--dies-on", "2"]
    trained = Trained(job)
    try:
        trained.reaches(1)
        before, request = slurm.jobs(), trained.ask(2)
        until(lambda: (found := PresentSize.read(trained.run)) and found.refused == request.id, timeout_s=60)
        steps = len(trained.events(ledger.STEP))
        until(lambda: len(trained.events(ledger.STEP)) > steps + 10)
        assert hosts_of(trained.events(ledger.STEP)[-1]) == 1
        assert "in the new layout" in trained.events(ledger.UNDONE)[-1]["failure"]
        until(lambda: slurm.jobs() == before, timeout_s=60)
        (trained.run / STOP).touch()
        assert trained.ended() == 130
        standing = [line for line in ledger.standing(ledger.read(trained.run)) if line["event"] == ledger.STEP]
        assert ledger.require_whole(standing) == len(standing) * 8
    finally:
        trained.process.kill()
