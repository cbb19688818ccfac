"""The user's own trainer runs as an elastic job on a real Slurm, from the profile to the last sample, also with failures."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.spool import ElasticJob
from oppa.control.own_trainer.run_book import RESTARTED
from oppa.training.run import ledger
from tests.cluster.controlled import Controlled, grown_without_a_node, scaled
from tests.cluster.own_jobs import PLAIN, TRANSFORMERS, Job, require_trained
from tests.launchers.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.timeout(900)]

KILLS = 20


def test_from_the_profile_to_the_last_sample(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, 8 * 1500)
    sizes = ("--devices", "1..4", "--measure", "1,2", "--out", job.scales, "--set", "limits.trials=1", "--set", "launcher.name=slurm")
    found = json.loads(job.oppa("scale-table", job.job, *sizes, "--json").stdout)
    assert [(entry["devices"], entry["source"]) for entry in found["entries"]] == [(1, "measured"), (2, "measured"), (4, "predicted")]
    job.output.rename(tmp_path / "profiled")
    controlled = scaled(job.submit(), slurm, timeout_s=360, hurry=job.hurry)
    assert require_trained(job, controlled)[:4] == [1, 2, 4, 1]
    assert job.taken() == list(range(job.samples))
    hosts = [line["hosts"] for line in controlled.lines() if line["event"] == ledger.STARTED]
    assert list(map(len, hosts))[:4] == [1, 2, 4, 1] and set(hosts[2]) == set(slurm.nodes) and hosts[3] == hosts[0] == hosts[1][:1]
    changes = [line["seconds"] for line in controlled.lines() if line["event"] == ledger.CHANGED]
    assert len(changes) >= 3 and all(set(seconds) == {"save", "start"} for seconds in changes)
    assert ElasticJob.read(job.spool / "elastic").desired().launches == 1, "one process has trained it on all hosts"


@pytest.mark.nightly
def test_a_trainer_without_early_start_is_restarted_cold(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, 8 * 1500, PLAIN, "--late-start")
    job.write_table()
    controlled = scaled(job.submit(), slurm, timeout_s=360, hurry=job.hurry)
    assert require_trained(job, controlled)[:4] == [1, 2, 4, 1]
    pauses = [line["seconds"]["restart"] for line in controlled.lines() if line["event"] == RESTARTED]
    assert len(pauses) >= 3 and all(pause_s > 0 for pause_s in pauses)
    assert ElasticJob.read(job.spool / "elastic").desired().launches == len(pauses) + 1


@pytest.mark.nightly
def test_the_pause_of_both_restarts_is_compared(slurm: SlurmCluster) -> None:
    command = [sys.executable, "-m", "oppa", "bench", "elastic-restart", "--repeats", "1", "--tasks", "own", "--json"]
    done = subprocess.run(command, env={**slurm.environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["elastic_restart"]["own"]
    assert found["ratio"] == pytest.approx(found["cold_s"] / found["prepared_s"]) and len(found["pairs"]) == 1


@pytest.mark.nightly
def test_a_transformers_trainer_is_scaled(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, 8 * 700, TRANSFORMERS)
    job.write_table()
    assert require_trained(job, scaled(job.submit(), slurm, timeout_s=360, hurry=job.hurry))[:4] == [1, 2, 4, 1]
    assert job.taken() == list(range(job.samples))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(int(os.environ.get("OPPA_FAULT_REPEATS", "1"))))
def test_a_node_that_dies_while_the_job_grows_loses_no_sample(seed: int, slurm: SlurmCluster, tmp_path: Path) -> None:
    """It is gone at some moment of the change from two hosts to four, and back once the job trains on what is left."""
    job, chance = Job(slurm, tmp_path, 8 * 1500), random.Random(seed)
    job.write_table()
    controlled = grown_without_a_node(job.submit(), slurm, chance)
    assert set(require_trained(job, controlled)) <= {1, 2, 4}
    assert job.taken() == list(range(job.samples))


@pytest.mark.nightly
@pytest.mark.parametrize("program", [PLAIN, TRANSFORMERS])
def test_a_controller_that_is_killed_20_times_loses_no_sample(program: str, slurm: SlurmCluster, tmp_path: Path) -> None:
    chance = random.Random(f"{program} {os.environ.get('OPPA_FAULT_SEED', '0')}")
    job = Job(slurm, tmp_path, 8 * (500 + 80 * KILLS), program)
    job.write_table()
    controlled = Controlled(job.submit(), slurm, "--set", "scaling.threshold=0")
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 6.0))
            if chance.random() < 0.2:
                slurm.submit("sleep 3", "--nodes=3", "--exclusive")
            controlled.kill()
        assert controlled.process.wait(timeout=400) == 0, controlled.log.read_text()
    finally:
        controlled.end()
        slurm.cancel(*slurm.jobs())
    assert require_trained(job, controlled)
    assert job.taken() == list(range(job.samples))
    assert (controlled.spool / "decisions.jsonl").exists(), "it was scaled meanwhile"
