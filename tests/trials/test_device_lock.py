"""One trial at a time: others wait, with time to renew their leases, and never longer than the holder lives."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oppa.problem.cluster import Cluster
from oppa.problem.training import Limits
from oppa.trials.device_lock import exclusive
from oppa.trials.local import LocalLauncher
from oppa.trials.trial import run_trial

CPUS = Cluster(devices_per_host=2, memory_limit_bytes=1 << 30)
HOLDER = """
import time
from oppa.problem.cluster import Cluster
from oppa.trials.device_lock import exclusive
with exclusive(Cluster(devices_per_host=1, memory_limit_bytes=1), lambda: None):
    print(flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder():
    """Another tuner, in the middle of a trial."""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=root) as process:
        process.stdout.readline()
        yield process
        process.kill()


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
    with exclusive(CPUS, refuse):
        child.kill()
    child.wait()


@pytest.mark.slow
def test_two_tuners_trials_take_turns_and_waiting_does_not_count(script_runner, make_spec, tmp_path):
    def tune(name):
        with LocalLauncher(script_runner, study=name, grace_s=1) as launcher:
            return run_trial(launcher, tmp_path / name, make_spec("steps 20 0.02", steps=20), limits=Limits())

    begin_s = time.monotonic()
    with ThreadPoolExecutor() as tuners:
        results = list(tuners.map(tune, ("one", "other")))
    elapsed_s = time.monotonic() - begin_s
    assert [result.outcome for result in results] == ["completed", "completed"]
    assert sum(result.seconds for result in results) <= elapsed_s
