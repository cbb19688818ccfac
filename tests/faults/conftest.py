"""A tuner in a process of its own, and its family: what is killed in these tests, and what must not survive it."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from oppa.trials import processes
from oppa.trials.monitor import HANG_S
from oppa.trials.orphans import end_orphans

GRACE_S = 1.0


def wait_for(condition, timeout_s=30):
    """Return what the condition returns once it is true; fail if that never comes."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "this never happened"
        time.sleep(0.02)
    return found


def children(parent):
    """Living processes whose parent is this one."""
    return {each for each in processes.descendants(parent.pid) if _parent(each) == parent.pid}


def _parent(process):
    try:
        return int(Path(f"/proc/{process.pid}/status").read_text().partition("PPid:")[2].split()[0])
    except OSError:
        return None


class Tuner:
    """Holds a tuner under test. `study` tags all its processes, and `family` has every process ever seen below it."""

    def __init__(self, study, folder, command):
        self.study = study
        self.folder = folder
        self._child = subprocess.Popen(command, start_new_session=True)
        self.process = next(each for each in processes.descendants(os.getpid()) if each.pid == self._child.pid)
        self.family = {self.process}

    def meet(self):
        """Look at the family; returns the shim, the parent of the ranks, and the ranks."""
        self.family |= processes.descendants(self.process.pid)
        (shim,) = children(self.process)
        # What was orphaned is a child of the shim too: the parent of the ranks was there first.
        parent = min(children(shim), key=lambda each: each.started)
        return shim, parent, sorted(children(parent))

    def kill(self, *victims, number=signal.SIGKILL):
        for victim in victims:
            os.kill(victim.pid, number)

    def wait(self, timeout_s=30):
        """The tuner's exit code."""
        return self._child.wait(timeout_s)

    def tagged(self):
        return processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == self.study)

    def survivors(self):
        return {each for each in self.family if processes.is_living(each)} | self.tagged()

    def results(self):
        path = self.folder / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self):
        self._child.kill()
        self._child.wait()
        end_orphans(self.study)


@pytest.fixture
def start_tuner(tmp_path):
    """Start a tuner on scripts, and wait until its first trial has made a step."""
    tuners = []

    def start(*scripts, kind="warm", study=None, silence_s=HANG_S):
        study = study or str(uuid.uuid4())
        folder = tmp_path / str(len(tuners))
        driver = Path(__file__).with_name("driver.py")
        tuner = Tuner(study, folder, [sys.executable, str(driver), study, str(folder), kind, str(silence_s), *scripts])
        tuners.append(tuner)
        measurements = folder / "0" / "measurements.jsonl"
        wait_for(lambda: measurements.exists() and measurements.stat().st_size > 0)
        return tuner

    yield start
    for tuner in tuners:
        tuner.close()
