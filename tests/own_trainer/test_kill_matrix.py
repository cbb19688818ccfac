"""Whatever is killed at whatever moment, while a policy changes batch and layout: nothing is left running, and each sample counts once."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from oppa.control.service.tokens import Tokens
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS
from tests.own_trainer.living import of_run, wait_for
from tests.own_trainer.own_runs import OwnRun
from tests.sampling import sampled

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SAMPLES = 8000
SPEEDS = {(8, "none"): 20.0, (16, "none"): 19.0, (16, "full"): 200.0, (32, "full"): 190.0}
"""Steps per second of a table in which a larger batch pays, then another layout, then a larger batch in it."""
MOMENTS = [("step", 3), ("step", 15), ("step", 30), ("early", 0), *(("leave", ms) for ms in (0, 30, 100, 300, 1000))]
"""Steps that were taken; or milliseconds after the next ranks have started early, or after the present ones were asked to leave."""
VICTIMS = ("rank", "launcher", "oppa", "service")
CASES = [(victim, number, moment) for victim in VICTIMS for number in (signal.SIGKILL, signal.SIGTERM) for moment in MOMENTS]


def features(victim, number, moment):
    """The short form kills everything once, in both ways, and in each phase."""
    return {victim, (victim == "oppa", number), moment[0]}


class Training:
    """A run under `oppa train`, whose policy is that of a service in a process of its own."""

    def __init__(self, folder):
        self.own = OwnRun(folder, "--noise", "5000", "--save-every", "7", "--early-start", ranks=2, samples=SAMPLES)
        table = str(self.own.table(folder / "t", SPEEDS))
        service = ["control", "--table", table, "--port", "0", "--folder", str(folder / "control"), "--decision-interval", "5"]
        self.service = subprocess.Popen([sys.executable, "-m", "oppa", *service], stderr=subprocess.PIPE, text=True)
        while not (found := re.search(r"127\.0\.0\.1:(\d+)", self.service.stderr.readline())):
            assert self.service.poll() is None
        words = ["train", str(self.own.job), "recompute=none", "--run", str(self.own.run), "--table", table]
        self.words = [sys.executable, "-m", "oppa", *words, "--control", f"my-job@127.0.0.1:{found[1]}", "--", *self.own.command]
        self.environment = {**os.environ, "OPPA_CONTROL_TOKEN": Tokens.of(folder / "control").of_job("my-job")}
        self.start()

    def start(self):
        self.oppa = subprocess.Popen(self.words, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def victim(self, name):
        """Return the process number of what is to be killed; of several ranks the youngest one."""
        if name in ("oppa", "service"):
            return getattr(self, name).pid
        return [process.pid for process in sorted(of_run(self.own.folder), key=lambda each: each.pid)][0 if name == "launcher" else -1]

    def has_come(self, kind, number):
        """Return True if a moment has come."""
        if kind == "step":
            return (self.own.run / ledger.FILE).exists() and len(self.own.events(ledger.STEP)) >= number
        attempt, name = ("0002", "hold.json") if kind == "early" else ("0001", "leave.json")
        return (self.own.run / ATTEMPTS / attempt / name).exists()

    def close(self):
        for each in (self.oppa, self.service):
            each.kill()
            each.communicate()


@pytest.fixture
def training(tmp_path):
    made = Training(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("victim", "number", "moment"), sampled(CASES, features))
def test_a_kill_leaves_nothing_running_and_loses_no_sample(training, victim, number, moment):
    wait_for(lambda: training.has_come(*moment))
    time.sleep(moment[1] / 1000 if moment[0] == "leave" else 0)
    os.kill(training.victim(victim), number)
    _, printed = training.oppa.communicate(timeout=120)
    if victim == "oppa":
        assert training.oppa.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), printed
        wait_for(lambda: not of_run(training.own.folder), 10.0)
        training.start()
        _, printed = training.oppa.communicate(timeout=120)
    assert training.oppa.returncode == 0, printed
    assert not of_run(training.own.folder)
    assert ledger.require_whole(training.own.events(ledger.STEP)) == SAMPLES
    assert training.own.samples() == list(range(SAMPLES))
