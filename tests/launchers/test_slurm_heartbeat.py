"""The script of a job that holds hosts, run without Slurm."""

import os
import subprocess
from pathlib import Path

import pytest

from oppa.launchers.slurm_job import GONE_S, script


@pytest.mark.parametrize("ago_s", [-1e6, 0, 1e6])
def test_hosts_are_held_by_changes_of_a_file_and_not_by_the_clock_of_the_node(ago_s: float, tmp_path: Path) -> None:
    """The stub of `sleep` touches the file for the first ten times; its times are far from those of this host."""
    sign, slept = tmp_path / "sign", tmp_path / "slept"
    sign.touch()
    stub = f"""#!/bin/sh
echo x >> {slept}
count=$(wc -l < {slept})
test $count -le 10 && touch -d "@$(({int(2e9 - ago_s)} + count))" {sign}
exit 0
"""
    (tmp_path / "sleep").write_text(stub)
    (tmp_path / "sleep").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh"], input=script(sign), text=True, env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0 and not done.stderr
    assert len(slept.read_text().splitlines()) == 10 + GONE_S // 5
