"""A run on several hosts: it is the same run, and changes its layout across their link."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.training.run import ledger
from tests.jobs import TRAIN_JOB
from tests.launchers.emulated_hosts import needs_hosts

JOB = TRAIN_JOB.replace("devices_per_host = 2", "hosts = 2\ndevices_per_host = 1")
LINK = ("--bandwidth", "200mbit", "--latency", "1ms")


@needs_hosts
@pytest.mark.slow
def test_a_run_changes_its_layout_across_hosts(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    netlab = [sys.executable, "-m", "oppa", "emulate", "--hosts", "2", "--ranks-per-host", "1", *LINK, "--", sys.executable, "-m", "oppa"]

    def train(*arguments: str) -> dict[str, object]:
        command = [*netlab, "train", "job.toml", *arguments, "--run", "r", "--json"]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    first, second = train("dp=2,micro_batch=2", "--set", "train.samples=48"), train("pp=2,micro_batch=2", "--set", "train.samples=96")
    assert (first["samples"], second["samples"], second["configuration"]) == (48, 96, "dp1_tp1_pp2_z0_mbs2")
    lines = ledger.standing(ledger.read(tmp_path / "r"))
    assert [line["received_bytes"] > 0 for line in lines if line["event"] == ledger.CHANGED] == [False], "pipelines hold less"
    assert ledger.require_whole(lines) == 96
