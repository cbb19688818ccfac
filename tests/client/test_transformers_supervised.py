"""`oppa train` supervises a program around `OppaTrainer`: its reports agree with its plan, and it goes on from its own checkpoints."""

import sys

import pytest

from oppa.training.run import ledger
from tests.client import trainer_program
from tests.own_trainer.own_runs import OwnRun, StopBehind

pytestmark = pytest.mark.slow


def test_a_stop_saves_and_the_same_call_goes_on_to_the_end(tmp_path):
    own = OwnRun(tmp_path, samples=100)
    own.folder.mkdir()
    own.command = [sys.executable, trainer_program.__file__, str(own.folder), "seen"]
    own.command += ["--micro-batch", "{micro_batch}", "--recompute", "{recompute}"]
    stopped = own.train(callback=StopBehind(2))
    taken = ledger.require_whole(stopped.lines)
    assert stopped.outcome.ending.value == "stopped" and 0 < taken < 100, stopped.outcome.last
    result = own.train()
    assert result.finished, result.outcome.last
    assert ledger.require_whole(result.lines) == 100
    assert result.lines[-1]["event"] == ledger.ENDED
