"""The kill matrix again, on `oppa tune` itself: the study stays intact, loses at most one trial, and goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.study import Study
from oppa.trials import processes
from tests.faults.conftest import GRACE_S, children, wait_for
from tests.sampling import nightly

RUNNER = Path(__file__).parents[1] / "cli" / "runners" / "landscape"
TRIALS = 3
JOB = f"""
model = {{preset = "tiny-1m"}}
batch = {{global_batch = 4}}
cluster = {{devices_per_host = 2, device = "CPU", memory_limit = "200 MiB"}}
runner = {{name = "{RUNNER}"}}
limits = {{trials = {TRIALS}, trial_time = "30 s", q_min = 2, q_max = 30, repeats = 3, grace = "{GRACE_S} s", device_lock = false}}
"""

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.parametrize("repeat", range(int(os.environ.get("OPPA_FAULT_REPEATS", "1")))),
]


class TuneProcess:
    """Runs one `oppa tune` on the study in `folder`."""

    def __init__(self, folder):
        (folder / "job.toml").write_text(JOB)
        self.study = folder / "study"
        command = [sys.executable, "-m", "oppa", "tune", "job.toml", "--designer", "random", "--study", "study", "--json"]
        self._child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.tuner = next(each for each in processes.descendants(os.getpid()) if each.pid == self._child.pid)

    def in_trial(self, number):
        """Wait until trial `number` has made a step; returns tuner, shim, parent of the ranks, and a rank."""
        wait_for(lambda: any(path.stat().st_size for path in self.study.glob(f"trials/{number:04d}_*/measurements.jsonl")), timeout_s=120)
        (shim,) = children(self.tuner)
        parent = min(children(shim), key=lambda each: each.started)
        return {"tuner": self.tuner, "shim": shim, "launcher": parent, "rank": max(children(parent))}

    def end(self):
        """The exit code and what was printed."""
        said = self._child.communicate(timeout=180)[0]
        return self._child.returncode, said

    def trials(self):
        with Study(self.study) as study:
            return study.trials()

    def survivors(self):
        with Study(self.study) as study:
            uuid = study.uuid
        return processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == uuid)


def assert_whole(folder):
    """A further tuner finishes the study; every trial that was not the victim counts."""
    executor = TuneProcess(folder)
    code, said = executor.end()
    assert code == 0
    outcomes = [trial["outcome"] for trial in json.loads(said)["trials"]]
    assert outcomes.count("completed") >= TRIALS - 1 and len(outcomes) <= TRIALS + 1
    assert not executor.survivors()


@pytest.mark.parametrize(
    ("victim", "number"),
    [("rank", signal.SIGKILL), *nightly(("shim", signal.SIGKILL), ("launcher", signal.SIGKILL), ("rank", signal.SIGSTOP))],
)
def test_a_study_goes_on_when_something_below_it_dies(tmp_path, repeat, victim, number):
    executor = TuneProcess(tmp_path)
    os.kill(executor.in_trial(2)[victim].pid, number)
    code, _ = executor.end()
    assert code == 0
    outcomes = [trial.outcome for trial in executor.trials() if trial.purpose == "search"]
    assert len(outcomes) == TRIALS and outcomes.count("completed") == TRIALS - 1
    assert not executor.survivors()


@pytest.mark.parametrize("number", [signal.SIGKILL, *nightly(signal.SIGINT, signal.SIGTERM)])
def test_a_study_outlives_its_tuner(tmp_path, repeat, number):
    executor = TuneProcess(tmp_path)
    os.kill(executor.in_trial(2)["tuner"].pid, number)
    assert executor.end()[0] == (-9 if number == signal.SIGKILL else 130)
    wait_for(lambda: not executor.survivors(), timeout_s=GRACE_S + 2)
    assert_whole(tmp_path)


def test_tuner_and_shim_killed_together_are_cleared_by_the_next_tuner(tmp_path, repeat):
    executor = TuneProcess(tmp_path)
    family = executor.in_trial(2)
    for victim in ("tuner", "shim", "launcher"):
        os.kill(family[victim].pid, signal.SIGKILL)
    executor.end()
    assert_whole(tmp_path)
    assert not any(map(processes.is_living, family.values()))
