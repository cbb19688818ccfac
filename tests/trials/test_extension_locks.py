"""A trial removes the locks of torch's extensions that its killed builds leave, and no others."""

import os
import time

import pytest
from torch.utils.file_baton import FileBaton

from oppa.trials import file_systems
from oppa.trials.extension_locks import DIRECTORY, ExtensionLocks
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import prepare
from tests.control.services import until
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, script_spec


@pytest.fixture
def lock(tmp_path):
    folder = tmp_path / "py311_cpu" / "fused_adam"
    folder.mkdir(parents=True)
    return folder / "lock"


def remove(tmp_path, *, since=0.0):
    ExtensionLocks({DIRECTORY: str(tmp_path)}, since=since).remove()


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Locks of a cache on a network file system."""
    (mounts := tmp_path / "mounts").write_text(f"root / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    return ExtensionLocks({DIRECTORY: str(tmp_path)}, since=0)


def test_a_lock_that_no_process_holds_is_removed(lock, tmp_path) -> None:
    lock.touch()
    remove(tmp_path)
    assert not lock.exists() and FileBaton(str(lock)).try_acquire()


def test_a_lock_that_a_process_holds_stays_until_it_ends_its_build(lock, tmp_path) -> None:
    baton = FileBaton(str(lock))
    baton.try_acquire()
    remove(tmp_path)
    assert lock.exists()
    baton.release()
    assert not lock.exists()


def test_a_lock_from_before_the_trial_stays(lock, tmp_path) -> None:
    lock.touch()
    os.utime(lock, (time.time() - 60,) * 2)
    remove(tmp_path, since=time.time() - 30)
    assert lock.exists()


def test_a_lock_of_another_host_stays(lock, shared) -> None:
    lock.touch()
    shared.note()
    shared.remove()
    assert lock.exists()


def test_a_lock_that_a_process_of_this_host_held_to_the_trial_s_end_is_removed(lock, shared) -> None:
    baton = FileBaton(str(lock))
    baton.try_acquire()
    shared.note()
    os.close(baton.fd)  # as if it were killed
    shared.remove()
    assert not lock.exists()


def test_a_lock_that_another_host_takes_after_this_one_stays(lock, shared) -> None:
    baton = FileBaton(str(lock))
    baton.try_acquire()
    shared.note()
    baton.release()
    lock.touch()
    shared.remove()
    assert lock.exists()


@pytest.mark.parametrize("variables", [{"XDG_CACHE_HOME": "{}/c"}, {"XDG_CACHE_HOME": "", "HOME": "{}"}])
def test_without_the_variable_the_cache_is_torch_s_own(variables, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    known = {name: value.format(tmp_path) for name, value in variables.items()}
    lock = tmp_path / ("c" if known["XDG_CACHE_HOME"] else ".cache") / "torch_extensions" / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    ExtensionLocks(known, since=0).remove()
    assert not lock.exists()


@pytest.mark.parametrize("front", [f"env {DIRECTORY}={{}}", f"env -C {{}} {DIRECTORY}=.", f"env A=1 HOME=/nowhere {DIRECTORY}={{}}"])
def test_a_cache_that_the_launch_line_names_is_that_of_its_trials(front, lock, tmp_path) -> None:
    lock.touch()
    argv = [*front.format(tmp_path).split(), "torchrun", "--nproc-per-node", "2", "train.py", f"{DIRECTORY}=/elsewhere"]
    ExtensionLocks({DIRECTORY: str(tmp_path / "other")}, argv, since=0).remove()
    assert not lock.exists()


def test_each_launcher_of_a_host_removes_the_locks_of_its_own_ranks(lock, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    (trial := tmp_path / "study" / "trials" / "1").mkdir(parents=True)
    prepare(trial, script_spec("steps 4 0.01", ranks=1))
    with LocalLauncher(load_runner(SCRIPT_RUNNER), study=STUDY, grace_s=1) as launcher:
        running = launcher.start(trial, script_spec("steps 4 0.01", ranks=1))
        lock.touch()
        os.utime(lock, (time.time() + 1,) * 2)  # a build takes longer than a tick of the file system's clock
        running.end(1)
        assert not lock.exists()


def test_a_launcher_removes_a_lock_that_its_rank_held_to_the_end(lock, shared, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    (trial := tmp_path / "study" / "trials" / "1").mkdir(parents=True)
    spec = script_spec(f"shell 'exec 9>{lock}; sleep 100'", ranks=1)
    prepare(trial, spec)
    with LocalLauncher(load_runner(SCRIPT_RUNNER), study=STUDY, grace_s=1) as launcher:
        running = launcher.start(trial, spec)
        until(lock.exists)
        running.end(1)
    assert not lock.exists()


@pytest.mark.slow
def test_a_trial_that_is_killed_while_it_builds_leaves_no_lock(act, launcher, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "built"))
    (tmp_path / "built" / "cpu_adam").mkdir(parents=True)
    lock = tmp_path / "built" / "cpu_adam" / "lock"
    assert act(f"shell 'touch {lock}'\nsleep 100", trial_time_s=3).outcome == "timed_out"
    assert not lock.exists()
