"""The processes of a benchmark end with it, and a killed one is an error that names the cause."""

import os
import subprocess
import sys
import time

import pytest

from oppa import catalog
from oppa.bench.worker_pool import worker_pool
from oppa.errors import EnvironmentLackingError
from oppa.trials import processes
from tests.bench.remains import assert_gone, command_of

WAITING = """
import pathlib, sys, time
from oppa.bench.worker_pool import worker_pool
with worker_pool(1) as pool:
    pool.submit(pathlib.Path(sys.argv[1]).touch)
    pool.submit(time.sleep, 600).result()
"""


def test_nothing_is_left_of_a_pool_whose_owner_is_killed(tmp_path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path / "began")], cwd=catalog.root())
    while not (tmp_path / "began").exists():
        time.sleep(0.02)
    workers = [each for each in processes.descendants(owner.pid) if "spawn_main" in command_of(each.pid)]
    owner.kill()
    owner.wait()
    assert workers
    assert_gone(workers)


def test_a_killed_process_is_named() -> None:
    with pytest.raises(EnvironmentLackingError, match="a process of the benchmark was killed"), worker_pool(1) as pool:
        pool.submit(os._exit, 1).result()
