"""Whatever is killed at whatever moment, while a policy changes batch and layout: nothing is left running, and each sample counts once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.trainers.example_run import ExampleRun
from experiments.trainers.integrations import program_of
from experiments.trainers.reference import place
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
LATE = 15
"""Step up to which each attempt of Transformers' `Trainer` has saved a checkpoint on the way."""
VICTIMS = ("rank", "launcher", "oppa", "service")
CASES = [(victim, number, moment) for victim in VICTIMS for number in (signal.SIGKILL, signal.SIGTERM) for moment in MOMENTS]
HERE = Path(__file__).parent


def steps_of(run):
    """Return the valid steps of a run."""
    return [line for line in ledger.standing(ledger.read(run)) if line["event"] == ledger.STEP]


class Plain:
    """Runs the plain trainer, which logs the samples of each rank."""

    program, policy, samples, limit_s = "plain.py", "goodput", 8000, 60.0

    def __init__(self, folder, moment):
        self._own = OwnRun(folder, "--noise", "5000", "--save-every", "7", "--early-start", ranks=RANKS, samples=self.samples)
        self.run, self.command, self.table = self._own.run, self._own.command, self._own.table(folder / "t", SPEEDS)
        self.words = [str(self._own.job), "recompute=none"]

    def has_taken(self, steps):
        """Return True if so many steps were taken."""
        return (self.run / ledger.FILE).exists() and len(steps_of(self.run)) >= steps

    def rank(self, running):
        """Return the process number of a rank: that of the youngest process."""
        return running[-1].pid

    def go_on(self):
        """Do nothing: the trainer does not wait."""

    def require_taken(self, steps):
        """Check that the ranks took each sample once and in order."""
        assert self._own.samples() == list(range(self.samples))

    def require_resumed(self, moment, before, after):
        """Do nothing: the moment may be that of a checkpoint."""


class Transformers:
    """Runs the example of Transformers' `Trainer`, which saves on the way, under a table with a larger batch elsewhere."""

    program, policy, samples, limit_s = "transformers_trainer.py", "stagewise", 1280, 240.0

    def __init__(self, folder, moment):
        hold_at = str(moment[1] if moment[0] == "step" else sys.maxsize)
        waiting = (str(HERE / "misbehaving.py"), "nothing")  # its first attempt waits for oppa's request
        wrapper = (*waiting, str(HERE / "logged_trainer.py"), hold_at)
        example = ExampleRun(TRANSFORMERS, folder / "run", samples=self.samples, ranks=RANKS, wrapper=wrapper)
        self.run, self.command, self.table = example.folder, example.command, example.table({(16, 0): 0.05, (32, 1): 0.045})
        settings = [*example.settings, f"cluster.devices_per_host={RANKS}"]
        self.words = [str(example.job), example.begin(0) + ",global_batch=16", *(word for each in settings for word in ("--set", each))]
        self._trained = self.run / "trained"

    def has_taken(self, steps):
        """Return True if all ranks wait in a step, the first one after so many that does not follow a checkpoint."""
        return sum(held.stat().st_size > 0 for held in self._trained.glob("held-*")) == RANKS

    def rank(self, running):
        """Return the process number of the last rank that waits in a step, or else of the youngest process."""
        return self._held(RANKS - 1)[1] if self.has_taken(0) else running[-1].pid

    def _held(self, rank):
        """Return the step in which a rank waits, and the number of its process."""
        return json.loads((self._trained / f"held-{rank}").read_text())

    def go_on(self):
        """End the wait of the ranks."""
        (self._trained / "go-on").touch()

    def require_taken(self, steps):
        """Check that each step took its samples in order, and that losses are those of a training without stops."""
        taken, size = self._taken(), len(program_of("transformers_trainer").Text())
        assert size > self.samples, "no element comes twice"
        assert taken == {line["step"]: [place(number, size) for number in range(*line["samples"])] for line in steps}
        assert [line["loss"] for line in steps] == pytest.approx(TRANSFORMERS.losses(steps), abs=CLOSE)

    def _taken(self):
        """Return the elements of each valid step in the order of ranks: an attempt replaces all steps from its first one on."""
        logs = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(self._trained.glob("samples-*.jsonl"))]
        taken = {}
        for attempt in sorted({attempt for log in logs for attempt, _, _ in log}):
            own = [(step, places) for log in logs for number, step, places in log if number == attempt]
            taken = {step: places for step, places in taken.items() if step < min(own)[0]}
            for step, places in own:
                taken[step] = taken.get(step, []) + places
        return taken

    def require_resumed(self, moment, before, after):
        """Check that the attempt after one that was killed in a step has resumed a checkpoint that it had saved on the way.

        Args:
            moment: Moment of the kill.
            before: First steps of the attempts up to the kill.
            after: First steps of all attempts.
        """
        if moment[0] == "step":
            began, resumed, killed = before[-1], after[len(before)], self._held(0)[0]
            assert began <= resumed < killed and (began < resumed or moment[1] < LATE)


class Training:
    """Holds a run under `oppa train`, whose policy is that of a service in a process of its own."""

    def __init__(self, folder, trainer, moment):
        self.folder, self.trainer = folder, trainer(folder, moment)
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

    def attempts(self):
        """Return the first step of each attempt."""
        return [line["step"] for line in ledger.read(self.trainer.run) if line["event"] == ledger.STARTED]

    def victim(self, name):
        """Return the process number of what is to be killed."""
        if name in ("oppa", "service"):
            return getattr(self, name).pid
        running = sorted(self.running(), key=lambda process: process.pid)
        return running[0].pid if name == "launcher" else self.trainer.rank(running)

    def has_struck(self, name, number):
        """Send a signal to a victim; return False if that process ended meanwhile, so that another one is the victim."""
        try:
            os.kill(self.victim(name), number)
        except ProcessLookupError:
            return False
        return True

    def has_come(self, kind, number):
        """Return True if a moment has come."""
        if kind == "step":
            return self.trainer.has_taken(number)
        attempt, name = ("0002", "hold.json") if kind == "early" else ("0001", "leave.json")
        return (self.trainer.run / ATTEMPTS / attempt / name).exists()

    def close(self):
        for each in (self.oppa, self.service):
            each.kill()
            each.communicate()


@pytest.fixture
def training(tmp_path, request, moment):
    made = Training(tmp_path, request.param, moment)
    yield made
    made.close()


def features(victim, number, moment):
    """The short form kills everything once, oppa at once, in each phase, and a rank in a step."""
    return {victim, number, (victim, number) == ("oppa", signal.SIGKILL), moment[0], (victim, moment[0]) == ("rank", "step")}


def foreign(victim, number, moment):
    """The short form with a real trainer kills a rank in a step after a checkpoint on the way."""
    return {victim} if (victim, number, moment) == ("rank", signal.SIGKILL, ("step", LATE)) else set()


def kill(training, victim, number, moment):
    """Kill a victim at a moment, and require that the run ends with each sample once, and with nothing left running."""
    trainer = training.trainer
    wait_for(lambda: training.has_come(*moment), trainer.limit_s)
    time.sleep(moment[1] / 1000 if moment[0] == "leave" else 0)
    before, survives = training.attempts(), victim == "service" or (victim, number) == ("oppa", signal.SIGTERM)
    wait_for(lambda: training.has_struck(victim, number))
    if survives:
        trainer.go_on()
    printed = training.end()
    if victim == "oppa":
        assert training.oppa.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), printed
        wait_for(lambda: not training.running(), 10.0)
        training.start()
        printed = training.end()
    assert training.oppa.returncode == 0, printed
    assert not training.running()
    steps = steps_of(trainer.run)
    assert ledger.require_whole(steps) == trainer.samples
    trainer.require_taken(steps)
    if not survives:
        trainer.require_resumed(moment, before, training.attempts())


@pytest.mark.parametrize("training", [Plain], indirect=True, ids=["plain"])
@pytest.mark.parametrize(("victim", "number", "moment"), sampled(CASES, features))
def test_a_kill_leaves_nothing_running_and_loses_no_sample(training, victim, number, moment):
    kill(training, victim, number, moment)


@pytest.mark.nightly
@pytest.mark.parametrize("training", [Transformers], indirect=True, ids=["transformers"])
@pytest.mark.parametrize(("victim", "number", "moment"), sampled(CASES, foreign))
def test_nor_does_one_under_the_trainer_of_transformers(training, victim, number, moment):
    kill(training, victim, number, moment)
