"""The tests' own Slurm leaves no cgroup behind."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ending import ending
from tests.launchers.slurm_cluster import FREEZER, remove_groups, tracking_lacking


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """A cgroup in another one, the innermost first."""
    if lacking := tracking_lacking():
        pytest.skip(lacking)
    outer = FREEZER / f"slurm_test-{os.getpid()}"
    (outer / "step").mkdir(parents=True)
    yield [outer / "step", outer]


def test_processes_of_a_frozen_cgroup_end(groups: list[Path]) -> None:
    inner, outer = groups
    with ending(subprocess.Popen(["sleep", "100"])) as process:
        (inner / "cgroup.procs").write_text(str(process.pid))
        (outer / "freezer.state").write_text("FROZEN")
        remove_groups(groups)
        assert process.wait(10) == -signal.SIGKILL and not outer.exists()
