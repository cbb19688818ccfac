"""Whatever is killed at whatever moment, while a policy changes batch and layout: nothing is left running, and each sample counts once."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.trainers.example_run import ExampleRun
from experiments.trainers.run import CLOSE, TRANSFORMERS
from oppa.control.service.tokens import Tokens
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS
from tests.own_trainer.living import of_run, wait_for
from tests.own_trainer.own_runs import OwnRun
from tests.sampling import sampled

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RANKS = 2
SPEEDS = {(8, "none"): 20.0, (16, "none"): 19.0, (16, "full"): 200.0, (32, "full"): 190.0}
"""Steps per second of a table in which a larger batch pays, then another layout, then a larger batch in it."""
MOMENTS = [("step", 3), ("step", 15), ("step", 30), ("early", 0), *(("leave", ms) for ms in (0, 30, 100, 300, 1000))]
"""Steps that were taken; or milliseconds after the next ranks have started early, or after the present ones were asked to leave."""
VICTIMS = ("rank", "launcher", "oppa", "service")
CASES = [(victim, number, moment) for victim in VICTIMS for number in (signal.SIGKILL, signal.SIGTERM) for moment in MOMENTS]


class Plain:
    """Runs the plain trainer, which logs the samples of each rank."""

    program, policy, samples, limit_s = "plain.py", "goodput", 8000, 60.0

    def __init__(self, folder):
        self._own = OwnRun(folder, "--noise", "5000", "--save-every", "7", "--early-start", ranks=RANKS, samples=self.samples)
        self.run, self.command, self.table = self._own.run, self._own.command, self._own.table(folder / "t", SPEEDS)
        self.words = [str(self._own.job), "recompute=none"]

    def require_taken(self, steps):
        """Check that the ranks took each sample once and in order."""
        assert self._own.samples() == list(range(self.samples))


class Transformers:
    """Runs the example of Transformers' `Trainer`, whose losses show which samples it took, under a table with a larger batch elsewhere."""

    program, policy, samples, limit_s = "transformers_trainer.py", "stagewise", 1280, 240.0

    def __init__(self, folder):
        waiting = (str(Path(__file__).with_name("misbehaving.py")), "nothing")  # its first attempt waits for oppa's request
        example = ExampleRun(TRANSFORMERS, folder / "run", samples=self.samples, ranks=RANKS, wrapper=waiting)
        self.run, self.command, self.table = example.folder, example.command, example.table({(16, 0): 0.05, (32, 1): 0.045})
        settings = [*example.settings, f"cluster.devices_per_host={RANKS}"]
        self.words = [str(example.job), example.begin(0) + ",global_batch=16", *(word for each in settings for word in ("--set", each))]

    def require_taken(self, steps):
        """Check that the losses are those of a training without stops."""
        assert [line["loss"] for line in steps] == pytest.approx(TRANSFORMERS.losses(steps), abs=CLOSE)


class Training:
    """A run under `oppa train`, whose policy is that of a service in a process of its own."""

    def __init__(self, folder, trainer):
        self.folder, self.trainer = folder, trainer(folder)
        table, run = str(self.trainer.table), str(self.trainer.run)
        service = ["control", "--table", table, "--port", "0", "--folder", str(folder / "control"), "--decision-interval", "5"]
        service += ["--policy", self.trainer.policy]
        self.service = subprocess.Popen([sys.executable, "-m", "oppa", *service], stderr=subprocess.PIPE, text=True)
        while not (found := re.search(r"127\.0\.0\.1:(\d+)", self.service.stderr.readline())):
            assert self.service.poll() is None
        words = ["train", *self.trainer.words, "--run", run, "--table", table, "--control", f"my-job@127.0.0.1:{found[1]}"]
        self.words = [sys.executable, "-m", "oppa", *words, "--", *self.trainer.command]
        self.environment = {**os.environ, "OPPA_CONTROL_TOKEN": Tokens.of(folder / "control").of_job("my-job")}
        self.start()

    def start(self):
        self.oppa = subprocess.Popen(self.words, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def end(self):
        """Wait for the end of oppa; return what it printed."""
        return self.oppa.communicate(timeout=2 * self.trainer.limit_s)[1]

    def running(self):
        return of_run(self.folder, self.trainer.program)

    def steps(self):
        return [line for line in ledger.standing(ledger.read(self.trainer.run)) if line["event"] == ledger.STEP]

    def victim(self, name):
        """Return the process number of what is to be killed; of several ranks the youngest one."""
        if name in ("oppa", "service"):
            return getattr(self, name).pid
        return sorted(process.pid for process in self.running())[0 if name == "launcher" else -1]

    def has_come(self, kind, number):
        """Return True if a moment has come."""
        if kind == "step":
            return (self.trainer.run / ledger.FILE).exists() and len(self.steps()) >= number
        attempt, name = ("0002", "hold.json") if kind == "early" else ("0001", "leave.json")
        return (self.trainer.run / ATTEMPTS / attempt / name).exists()

    def close(self):
        for each in (self.oppa, self.service):
            each.kill()
            each.communicate()


@pytest.fixture
def training(tmp_path, request):
    made = Training(tmp_path, request.param)
    yield made
    made.close()


def features(victim, number, moment):
    """The short form kills everything once, in both ways, and in each phase."""
    return {victim, (victim == "oppa", number), moment[0]}


def foreign(victim, number, moment):
    """The short form with a real trainer kills a rank, oppa and the service."""
    return {victim} - {"launcher"}


def kill(training, victim, number, moment):
    """Kill a victim at a moment, and require that the run ends with each sample once, and with nothing left running."""
    wait_for(lambda: training.has_come(*moment), training.trainer.limit_s)
    time.sleep(moment[1] / 1000 if moment[0] == "leave" else 0)
    os.kill(training.victim(victim), number)
    printed = training.end()
    if victim == "oppa":
        assert training.oppa.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), printed
        wait_for(lambda: not training.running(), 10.0)
        training.start()
        printed = training.end()
    assert training.oppa.returncode == 0, printed
    assert not training.running()
    steps = training.steps()
    assert ledger.require_whole(steps) == training.trainer.samples
    training.trainer.require_taken(steps)


@pytest.mark.parametrize("training", [Plain], indirect=True, ids=["plain"])
@pytest.mark.parametrize(("victim", "number", "moment"), sampled(CASES, features))
def test_a_kill_leaves_nothing_running_and_loses_no_sample(training, victim, number, moment):
    kill(training, victim, number, moment)


@pytest.mark.parametrize("training", [Transformers], indirect=True, ids=["transformers"])
@pytest.mark.parametrize(("victim", "number", "moment"), sampled(CASES, foreign))
def test_nor_does_one_under_the_trainer_of_transformers(training, victim, number, moment):
    kill(training, victim, number, moment)
