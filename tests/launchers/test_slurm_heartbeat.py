"""The heartbeat of a job that holds hosts, and the script of the job, run without Slurm."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from oppa.launchers import slurm_job
from oppa.launchers.slurm_job import GONE_S, heartbeat, script
from tests.ending import ending

EACH_S = 5
"""Seconds between two looks at the file."""


def looks(sign: Path, touches: str, folder: Path) -> int:
    """Run the script with a stub of `sleep` that runs `touches` with the number of the look; return how often it looked."""
    slept = folder / "slept"
    (folder / "sleep").write_text(f"#!/bin/sh\necho x >> {slept}\ncount=$(wc -l < {slept})\n{touches}\nexit 0\n")
    (folder / "sleep").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["sh"], input=script(sign), text=True, env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0
    return len(slept.read_text().splitlines())


@pytest.mark.parametrize("ago_s", [-1e6, 0, 1e6])
def test_hosts_are_held_by_changes_of_a_file_and_not_by_the_clock_of_the_node(ago_s: float, tmp_path: Path) -> None:
    """The file is touched ten times; its times are far from those of this host."""
    (tmp_path / "sign").touch()
    touches = f'test $count -le 10 && touch -d "@$(({int(2e9 - ago_s)} + count))" {tmp_path / "sign"}'
    assert looks(tmp_path / "sign", touches, tmp_path) == 10 + GONE_S // EACH_S


def test_a_file_that_cannot_be_seen_for_a_while_releases_no_hosts(tmp_path: Path) -> None:
    sign, away = tmp_path / "sign", tmp_path / "away"
    sign.touch()
    touches = f"case $count in 5) mv {sign} {away} ;; 15) mv {away} {sign}; touch -d @2000000000 {sign} ;; esac"
    assert looks(sign, touches, tmp_path) == 15 + GONE_S // EACH_S


def test_a_file_that_cannot_be_touched_for_a_while_is_touched_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_job, "ALIVE_S", 0.01)
    sign = tmp_path / "folder" / "sign"
    with ending(subprocess.Popen(heartbeat(sign))) as beating:
        time.sleep(0.2)
        sign.parent.mkdir()
        until = time.monotonic() + 5
        while not sign.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert sign.exists() and beating.poll() is None
