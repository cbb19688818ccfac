"""`oppa train` supervises a program around `OppaTrainer`: its reports agree with its plan, and it goes on from its own checkpoints."""

import sys

import pytest
import torch

from experiments.trainers.stop_after import StopAfter
from oppa.training.run import ledger
from tests.client import trainer_program
from tests.client.by_hand import order
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow


def supervised(folder, *words, samples):
    own = OwnRun(folder, samples=samples)
    own.folder.mkdir()
    own.command = [sys.executable, trainer_program.__file__, str(own.folder), "seen"]
    own.command += ["--micro-batch", "{micro_batch}", "--recompute", "{recompute}", *words]
    return own


def test_a_stop_saves_and_the_same_call_goes_on_to_the_end_while_a_policy_changes_the_batch_between_two_steps(tmp_path):
    own = supervised(tmp_path, samples=400)
    table = own.table(tmp_path / "t", {(8, "none"): 9.0, (16, "none"): 8.0, (32, "none"): 7.0})
    stopped = own.train(callback=StopAfter(2), table=table, policy="stagewise")
    taken = ledger.require_whole(stopped.lines)
    assert stopped.outcome.ending.value == "stopped" and 0 < taken < 400, stopped.outcome.last
    seen = [torch.load(own.folder / "seen-0.pt", weights_only=False)]
    result = own.train(table=table, policy="stagewise")
    assert result.finished and result.outcome.attempts == 1, result.outcome.last
    assert ledger.require_whole(result.lines) == 400
    assert result.lines[-1]["event"] == ledger.ENDED
    batches = [line["global_batch"] for line in own.events(ledger.STEP)]
    assert batches == sorted(batches) and {8, 32} <= set(batches)  # the stage of 16 may pass between two decisions
    seen += [torch.load(own.folder / "seen-0.pt", weights_only=False)]
    assert [element for each in seen for step in each["steps"] for element in step["samples"]] == order(range(400))


@pytest.mark.nightly
def test_a_callback_that_stops_the_training_early_stops_the_run_which_the_same_call_resumes(tmp_path):
    own = supervised(tmp_path, "--stop-after", "5", samples=100)
    stopped = own.train()
    assert stopped.outcome.ending.value == "stopped" and ledger.require_whole(stopped.lines) == 40, stopped.outcome.last
    assert not stopped.finished and stopped.lines[-1]["event"] == ledger.ENDED and not stopped.lines[-1]["finished"]
    seen = [torch.load(own.folder / "seen-0.pt", weights_only=False)]
    result = own.train()
    assert result.finished and ledger.require_whole(result.lines) == 100, result.outcome.last
    seen += [torch.load(own.folder / "seen-0.pt", weights_only=False)]
    assert [element for each in seen for step in each["steps"] for element in step["samples"]] == order(range(100))
