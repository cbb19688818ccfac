"""The table from which the service's jobs choose, and a folder for two users."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import table, table_of

__all__ = ["open_to_all", "table", "table_of"]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that each user can enter; those of pytest and of its workers are root's alone."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
