"""Elastic training on a real Slurm, by arrivals and departures of other jobs; and a controller that is killed at any moment."""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger
from tests.cluster.controlled import Controlled, grown_without_a_node, losses, scaled
from tests.launchers.slurm_cluster import SlurmCluster
from tests.sampling import nightly

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.timeout(600)]  # two minutes each on an idle machine

JOB = """\
model = {preset = "tiny-1m", seq_len = 32}
batch = {global_batch = 8}
cluster = {hosts = 1, devices_per_host = 1, device = "CPU", memory_limit = "400 MiB"}
training = {learning_rate = 1e-3, gradient_clipping = 1.0}
runner = {name = "torch"}

[train]
samples = %d
checkpoint_every = "1 h"
profile_steps = 0
"""
PLENTY, REST = 8 * 2000, 8 * 100
"""Samples for which another size pays however fast the machine is, and those that are left for the last changes."""
SIZES = {1: 1.0, 2: 1.7, 4: 2.9}


def submitted(folder: Path, samples: int) -> Path:
    """A spool with one job, whose stages may lie on one, two or four hosts."""
    (folder / "job.toml").write_text(JOB % samples)
    problem = load_job(folder / "job.toml")
    rows = tuple(
        TableRow(
            configuration=Configuration(dp=1, pp=pp, global_batch=8, micro_batch=2, schedule="1f1b"),
            steps_per_s=speedup,
            log_stddev=0.1,
            memory_bytes=2**20,
            source="predicted",
        )
        for pp, speedup in SIZES.items()
    )
    facts = {"study": "a-run", "method": "predicted", "complete": True, "candidates": 3, "trials": 0, "spent_s": 0.0}
    origin = Origin.of(problem, created_at=time.time(), command="oppa scale-table", **facts)  # type: ignore[arg-type]
    Table(rows=rows, origin=origin).write(folder / "scales")
    words = ["cluster", "submit", folder / "spool", folder / "job.toml", "--table", folder / "scales", "--name", "elastic"]
    subprocess.run([sys.executable, "-m", "oppa", *map(str, words)], check=True, capture_output=True)
    return folder / "spool"


def unscaled(folder: Path, samples: int) -> dict[int, float]:
    """Return the losses of the same job on one host from its first step to its last."""
    (folder / "alone.toml").write_text(JOB % samples)
    words = ["train", folder / "alone.toml", "pp=1,micro_batch=2", "--run", folder / "alone", "--set", "launcher.name=local"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "oppa", *map(str, words)], check=True, capture_output=True, env=environment)
    return losses(ledger.read(folder / "alone"))


@pytest.mark.parametrize("sizes", [(1, 2, 1), *nightly(((1, 2, 4, 1),))], ids=str)
def test_arrivals_and_departures_scale_a_job_and_change_no_bit(sizes: tuple[int, ...], slurm: SlurmCluster, tmp_path: Path) -> None:
    asked: list[int] = []

    def shorten(controlled: Controlled) -> None:
        """Let the next start read of fewer samples."""
        asked.append(controlled.lines()[-1]["samples"][1] + REST)
        (controlled.spool / "elastic" / "job.toml").write_text(JOB % asked[0])

    controlled = scaled(submitted(tmp_path, PLENTY), slurm, timeout_s=180, most=max(sizes), at_most=shorten)
    lines, samples = controlled.lines(), asked[0]
    assert ledger.require_whole(lines) == samples
    trained = {line["configuration"].split("_")[2] for line in lines if line["event"] == ledger.STEP}
    assert trained == {f"pp{size}" for size in sizes}
    assert losses(lines) == unscaled(tmp_path, samples)
    decisions = [json.loads(line) for line in (controlled.spool / "decisions.jsonl").read_text().splitlines()]
    assert [(each["before"], each["after"]) for each in decisions] == list(itertools.pairwise(sizes))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(int(os.environ.get("OPPA_FAULT_REPEATS", "1"))))
def test_a_node_that_dies_while_a_job_grows_loses_nothing(seed: int, slurm: SlurmCluster, tmp_path: Path) -> None:
    """It is gone at some moment of the change from two hosts to four, and back when the job trains on what is left."""
    samples, chance = 8 * 500, random.Random(seed)
    controlled = grown_without_a_node(submitted(tmp_path, samples), slurm, chance)
    assert ledger.require_whole(ledger.standing(controlled.lines())) == samples
    assert losses(controlled.lines()) == unscaled(tmp_path, samples)


@pytest.mark.nightly
def test_a_controller_that_is_killed_loses_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    kills = int(os.environ.get("OPPA_FAULT_REPEATS", "4"))
    samples, chance = 8 * (400 + 30 * kills), random.Random(int(os.environ.get("OPPA_FAULT_SEED", "0")))
    controlled = Controlled(submitted(tmp_path, samples), slurm, "--set", "scaling.threshold=0")
    arrivals: list[str] = []
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.2, 6.0))
            if chance.random() < 0.2:
                arrivals.append(slurm.submit("sleep 3", "--nodes=3", "--exclusive"))
            controlled.kill()
        assert controlled.process.wait(timeout=300) == 0, controlled.log.read_text()
    finally:
        controlled.end()
        slurm.cancel(*slurm.jobs())
    assert ledger.require_whole(controlled.lines()) == samples
    assert losses(controlled.lines()) == unscaled(tmp_path, samples)
    assert (controlled.spool / "decisions.jsonl").exists(), "it was scaled meanwhile"
