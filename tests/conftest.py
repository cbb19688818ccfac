"""Prepare workers of pytest-xdist: long files of tests first, and temporary files and the lock on devices apart."""

import collections
import os
import shutil
import tempfile

import pytest

FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        config.stash[FOLDER] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"oppa-{worker}-")
        os.environ.update(dict.fromkeys(("TMPDIR", "XDG_RUNTIME_DIR"), tempfile.tempdir))


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have most tests of environments, then slow ones, so that the workers end together."""
    long = collections.Counter((item.path, mark.name) for item in items for mark in item.iter_markers())
    items.sort(key=lambda item: (-long[item.path, "environment"], -long[item.path, "slow"]))
