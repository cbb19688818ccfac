"""Another user of the machine can hold no lock: a user who can open its file could keep its owner waiting."""

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.spool import HELD
from oppa.private_files import open_private
from oppa.table import files
from oppa.training.run.run_folder import LOCK, held

LOCKS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    LOCK: held,
    files.LOCK: files._alone,
    HELD: lambda folder: os.fdopen(open_private(folder / HELD, os.O_RDWR | os.O_CREAT)),
}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("name", LOCKS)
def test_another_user_cannot_open_a_lock(name: str, open_to_all: Path) -> None:
    with LOCKS[name](open_to_all):
        pass
    tried = subprocess.run(
        ["flock", "--nonblock", open_to_all / name, "true"], user=65534, group=65534, extra_groups=[], capture_output=True
    )
    assert tried.returncode != 0 and b"ermission denied" in tried.stderr
