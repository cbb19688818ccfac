"""A launcher with cgroups finds every process of a step, however it hides."""

import contextlib
import sys
from pathlib import Path

import pytest

from tests.launchers.slurm_cluster import tracking_lacking, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(tracking_lacking()), reason=f"NOT TESTED: {tracking_lacking()}")]

HIDE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", [sys.argv[1], "600"], {})
    os._exit(0)
time.sleep(600)
"""


def test_nothing_is_left_of_a_cancelled_step(slurm, tmp_path):
    program = tmp_path / "hide.py"
    program.write_text(HIDE)
    name = f"hidden-{slurm.nodes[0]}"
    job = slurm.submit(f"srun --nodes=2 --ntasks-per-node=1 {sys.executable} {program} {name}", "--nodes=2", "--ntasks-per-node=1")
    until(lambda: len(named(name)) == 2)
    slurm.run("scancel", f"{job}.0")
    until(lambda: not named(name))
    slurm.wait_for(job, "FAILED", "CANCELLED")


def named(name):
    """Processes that are called so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [path] * path.read_bytes().startswith(name.encode())
    return found
