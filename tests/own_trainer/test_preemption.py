"""A site that takes devices away sends SIGTERM: the trainer receives the reason and the time that is left."""

import json
import signal
import subprocess
import sys

import pytest

from experiments.trainers.stop_after import StopAfter
from oppa.training.run import ledger
from tests.own_trainer.living import wait_for
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow


class Preempted(StopAfter):
    """Stops a run because its devices are about to be taken away."""

    def is_preempted(self) -> bool:
        return True


def exchanged(own: OwnRun, name: str) -> dict:
    return json.loads((own.run / "attempts" / "0001" / name).read_text())


@pytest.mark.parametrize(
    ("number", "reason", "deadline_s"),
    [(signal.SIGTERM, "preemption", 90.0), (signal.SIGINT, "stop", 600.0), (signal.SIGHUP, "stop", 600.0)],
)
def test_a_signal_decides_the_reason_and_the_deadline(number, reason, deadline_s, tmp_path):
    own = OwnRun(tmp_path, "--sleep", "0.02", samples=10**6)
    grace = ("--set", "train.preemption_grace='90 s'")
    words = [sys.executable, "-m", "oppa", "train", str(own.job), "--run", str(own.run), *grace, "--", *own.command]
    oppa = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (own.run / ledger.FILE).exists() and own.events(ledger.STEP))
    oppa.send_signal(number)
    _, printed = oppa.communicate(timeout=60)
    assert oppa.returncode == 130, printed
    assert exchanged(own, "leave.json") == {"reason": reason, "deadline_s": deadline_s}
    assert exchanged(own, "left.json")["reason"] == reason
    assert own.events(ledger.ENDED)[0]["finished"] is False


def test_without_a_grace_of_the_site_the_deadline_is_that_of_any_stop_and_the_run_resumes(tmp_path):
    own = OwnRun(tmp_path, samples=400, train=["leave_timeout='7 s'"])
    assert own.train(callback=Preempted(5)).outcome.ending.value == "stopped"
    assert exchanged(own, "leave.json") == {"reason": "preemption", "deadline_s": 7.0}
    assert own.train().finished and own.samples() == list(range(400))


def test_a_trainer_that_saves_nothing_is_ended_when_the_grace_is_over(tmp_path):
    own = OwnRun(tmp_path, "--misbehave", "saves-nothing", samples=10**6, train=["preemption_grace='0.5 s'"])
    result = own.train(callback=Preempted(5))
    assert result.outcome.ending.value == "failed"
    cause = result.outcome.last.cause
    assert "saved nothing within 500 ms after it was asked to leave (preemption)" in cause and "raise `preemption_grace`" in cause
