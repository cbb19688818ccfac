"""Give each worker of pytest-xdist its own folder of temporary files, as trials of one machine take turns by a lock in it."""

import os
import shutil
import tempfile

import pytest

FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        config.stash[FOLDER] = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"oppa-{worker}-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)
