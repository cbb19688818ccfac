"""Only the owner can read what programs print, whatever the umask."""

import os
import stat
from pathlib import Path

import pytest

from oppa.training.run.run_folder import new_attempt
from oppa.trials.guarded_process import GuardedProcess
from oppa.trials.trial import prepare
from tests.trials.conftest import script_spec


@pytest.fixture(autouse=True)
def _open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """The permissions of a file or a folder."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_trial_s_folder_is_the_owner_s_alone_also_if_an_older_oppa_made_it(tmp_path: Path) -> None:
    older = tmp_path / "trials" / "0002"
    older.mkdir(parents=True)
    for folder in (tmp_path / "trials" / "0001", older):
        prepare(folder, script_spec())
        assert mode(folder) == 0o700


def test_an_attempt_s_folder_is_the_owner_s_alone(tmp_path: Path) -> None:
    assert mode(new_attempt(tmp_path)) == 0o700


def test_a_log_of_oppa_is_the_owner_s_alone(tmp_path: Path) -> None:
    log = tmp_path / "tuner1.log"
    GuardedProcess("a tuner", ["echo", "a secret"], environment=os.environ, grace_s=1, log=log).close()
    assert mode(log) == 0o600
