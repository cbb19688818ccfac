"""One trial at a time: others wait, with time to renew their leases, and never longer than the holder lives."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from oppa.api import load_job, tune
from oppa.errors import StudyError
from oppa.problem.cluster import Cluster
from oppa.problem.training import Limits
from oppa.study import Study
from oppa.trials import device_lock
from oppa.trials.device_lock import exclusive, private_folder
from oppa.trials.local import LocalLauncher
from oppa.trials.trial import run_trial
from oppa.tuning.session import SilentCallback
from tests.ending import at_once, ending
from tests.own_program import JOB

CPUS = Cluster(devices_per_host=2, memory_limit_bytes=1 << 30)
HOLDER = """
import time
from oppa.problem.cluster import Cluster
from oppa.trials.device_lock import exclusive, private_folder
with exclusive(Cluster(devices_per_host=1, memory_limit_bytes=1), lambda: None):
    print(flush=True)
    time.sleep(100)
"""
HOMELESS = """
from oppa.errors import OppaError
from oppa.trials.device_lock import private_folder
from oppa.trials.environments import home
from oppa.trials.extension_locks import ExtensionLocks
ExtensionLocks({}, since=0.0).remove()
for find in (private_folder, home):
    try:
        find()
    except OppaError as error:
        print(error.hint)
"""


@pytest.fixture
def holder():
    """Another tuner, in the middle of a trial."""
    root = Path(__file__).parents[2]
    with ending(subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=root)) as process:
        process.stdout.readline()
        yield process


def refuse():
    raise KeyboardInterrupt


def test_who_waits_ticks_until_the_holder_dies(holder):
    ticks = []

    def kill_at_the_third():
        ticks.append(holder.poll())
        if len(ticks) == 3:
            holder.kill()

    with exclusive(CPUS, kill_at_the_third):
        assert len(ticks) >= 3


def test_a_tick_that_raises_ends_the_waiting(holder):
    with pytest.raises(KeyboardInterrupt), exclusive(CPUS, refuse):
        pytest.fail("two hold the devices")


def test_other_devices_are_free(holder):
    with exclusive(Cluster(devices_per_host=1, device="H100", memory_limit_bytes=1 << 30), refuse):
        assert holder.poll() is None


def test_what_we_start_does_not_hold_the_devices():
    with exclusive(CPUS, lambda: None):
        child = subprocess.Popen(["sleep", "100"], close_fds=False)
    with ending(child), exclusive(CPUS, refuse):
        assert child.poll() is None


class StopsWaiting(SilentCallback):
    """Stops the search when its trial has waited for the devices for a while."""

    until = float("inf")

    def started(self, lease):
        self.until = time.monotonic() + 0.3

    def tick(self):
        if time.monotonic() > self.until:
            raise KeyboardInterrupt


def test_the_time_in_which_a_trial_waits_for_the_devices_is_no_time_of_the_trial(holder, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    job = load_job(tmp_path / "job.toml", command=["true", "{micro_batch}"])
    with pytest.raises(KeyboardInterrupt):
        tune(job, study=tmp_path / "study", designer="random", callback=StopsWaiting())
    with Study(tmp_path / "study") as study:
        (trial,) = study.trials()
    assert trial.outcome == "interrupted" and trial.seconds < 0.1


@pytest.mark.slow
def test_two_tuners_trials_take_turns_and_waiting_does_not_count(script_runner, make_spec, tmp_path):
    def trial(name):
        with LocalLauncher(script_runner, study=name, grace_s=1) as launcher:
            return run_trial(launcher, tmp_path / name, make_spec("steps 20 0.02", steps=20), limits=Limits())

    begin_s = time.monotonic()
    results = at_once(trial, ("one", "other"))
    elapsed_s = time.monotonic() - begin_s
    assert [result.outcome for result in results] == ["completed", "completed"]
    assert sum(result.seconds for result in results) <= elapsed_s


def test_a_study_can_do_without_it(holder, script_runner, make_spec, tmp_path):
    with LocalLauncher(script_runner, study="free", grace_s=1) as launcher:
        limits = Limits(device_lock=False)
        result = run_trial(launcher, tmp_path / "free", make_spec("steps 3 0.01", steps=3), limits=limits, on_tick=lambda: None)
    assert result.outcome == "completed" and holder.poll() is None


def test_nobody_else_can_hold_it(tmp_path, monkeypatch):
    """The folder of the lock is the user's alone, wherever it lies; one that is not is refused."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert private_folder() == tmp_path / "state" / "oppa" and private_folder().stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert private_folder() == tmp_path / "oppa"
    (tmp_path / "oppa").chmod(0o777)
    with pytest.raises(StudyError, match="not a folder of yours alone"), exclusive(CPUS, refuse):
        pytest.fail("anybody could hold the devices")
    (tmp_path / "oppa").rmdir()
    (tmp_path / "oppa").symlink_to(tmp_path / "state")
    with pytest.raises(StudyError, match="not a folder of yours alone"):
        private_folder()


def test_a_tuner_without_the_variable_of_a_login_shell_holds_the_same_lock(tmp_path, monkeypatch):
    """A batch job does not have it."""
    own = tmp_path / str(os.getuid())
    own.mkdir()
    monkeypatch.setattr(device_lock, "RUNTIME", tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    with exclusive(CPUS, refuse):
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        with pytest.raises(KeyboardInterrupt), exclusive(CPUS, refuse):
            pytest.fail("two hold the devices")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_open_the_lock(monkeypatch):
    runtime = Path(tempfile.mkdtemp())
    runtime.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with exclusive(CPUS, refuse):
        (lock,) = (runtime / "oppa").iterdir()
        tried = subprocess.run(["flock", "--nonblock", lock, "true"], user=65534, capture_output=True, text=True)
    shutil.rmtree(runtime)
    assert tried.returncode != 0 and "Permission denied" in tried.stderr


@pytest.mark.slow
def test_a_user_without_a_home_is_told_what_to_set():
    homeless = ["unshare", "--map-user=54321", "env", "--unset=HOME", "--unset=OPPA_ENVIRONMENTS"]
    homeless += [f"--unset=XDG_{kind}" for kind in ("RUNTIME_DIR", "STATE_HOME", "CACHE_HOME")]
    if subprocess.run([*homeless, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no namespaces for its users")
    done = subprocess.run([*homeless, sys.executable, "-c", HOMELESS], capture_output=True, text=True)
    hints = [f"set {name} or {other} to a folder of yours" for name, other in (("XDG_RUNTIME_DIR", "HOME"), ("HOME", "OPPA_ENVIRONMENTS"))]
    assert done.stdout.splitlines() == hints
