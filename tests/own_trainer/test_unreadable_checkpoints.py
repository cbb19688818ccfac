"""A checkpoint that cannot be read: the run goes back to the one before, but never on account of a machine that fails."""

import subprocess
import sys

import pytest

from experiments.trainers.stop_after import StopAfter
from oppa.control.own_trainer.resumption import PATIENCE
from oppa.control.own_trainer.run_book import PASSED_OVER, UNREADABLE
from oppa.training.run import ledger
from oppa.training.run.run_folder import checkpoints
from oppa.training.run.supervision import FRUITLESS
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow

LAYOUTS = {(8, "none"): 100.0, (8, "full"): 900.0}


def resumed(own):
    """Return the checkpoints from which attempts began, as the ledger has them; None is the beginning."""
    return [line["checkpoint"] for line in ledger.read(own.run) if line["event"] == ledger.STARTED]


def noted(own, event):
    return [line["place"] for line in ledger.read(own.run) if line["event"] == event]


def test_an_empty_checkpoint_of_a_change_of_layout_loses_no_sample(tmp_path):
    own = OwnRun(tmp_path, "--noise", "5000", "--save-every", "3", "--empty", "layout", ranks=2, samples=10**6)
    table = own.table(tmp_path / "t", LAYOUTS)
    attempts = 3 + PATIENCE  # the first one, one in the new layout, and one from the checkpoint before
    result = own.train("recompute=none", table=table, policy="goodput", callback=StopAfter(20, attempt=attempts))
    assert result.outcome.ending.value == "stopped" and result.outcome.attempts == attempts, result.outcome.last
    (empty,) = noted(own, PASSED_OVER)
    assert noted(own, UNREADABLE) == [empty]
    seen = ledger.require_whole(result.lines)
    assert own.samples() == list(range(seen))
    whole = OwnRun(tmp_path / "whole", ranks=2, samples=seen)
    assert whole.train().finished and own.weight() == pytest.approx(whole.weight(), abs=1e-12)


def test_a_run_that_stopped_with_an_empty_checkpoint_goes_on_from_the_one_before(tmp_path):
    own = OwnRun(tmp_path, "--save-every", "5", "--empty", "stop", samples=400)
    own.train(callback=StopAfter(8))
    left, before = checkpoints(own.run)
    words = [sys.executable, "-m", "oppa", "train", str(own.job), "--run", str(own.run), "--", *own.command]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "400, each once and in order" in ended.stderr, ended.stderr
    empty = own.folder / f"checkpoint-{left.name.removeprefix('step-')}.json"
    assert f"warning no step was taken after resuming {empty}; the run resumes " in ended.stderr.replace("\n", " ")
    assert f"warning the checkpoint {empty} is unreadable" in ended.stderr.replace("\n", " ")
    assert resumed(own)[1:] == [left.name] * PATIENCE + [before.name] and not left.exists()
    assert own.samples() == list(range(400))


def test_one_failure_is_no_reason_to_go_back(tmp_path):
    own = OwnRun(tmp_path, "--save-every", "5", "--misbehave", "fails-resumed:1", samples=400)
    own.train(callback=StopAfter(8))
    newest = checkpoints(own.run)[0].name
    result = own.train()
    assert result.finished and resumed(own)[1:] == [newest, newest] and not noted(own, PASSED_OVER)


def test_a_machine_that_fails_keeps_all_checkpoints_and_the_same_command_resumes_the_newest(tmp_path):
    own = OwnRun(tmp_path, "--save-every", "5", "--misbehave", f"fails-resumed:{PATIENCE + FRUITLESS}", samples=400)
    own.train(callback=StopAfter(8))
    kept = checkpoints(own.run)
    failed = own.train()
    assert failed.outcome.ending.value == "failed" and checkpoints(own.run) == kept and not noted(own, UNREADABLE)
    assert f"repair it, or remove `{own.run / 'checkpoints'}`" in failed.outcome.last.cause
    result = own.train()
    assert result.finished and set(resumed(own)[1:]) == {kept[0].name}
    assert own.samples() == list(range(400)) and ledger.require_whole(result.lines) == 400


def test_a_trainer_whose_checkpoints_are_always_unreadable_is_given_up(tmp_path):
    own = OwnRun(tmp_path, "--save-every", "5", "--empty", "10", "--misbehave", "dies:12", samples=200)
    result = own.train()
    assert result.outcome.ending.value == "failed" and noted(own, UNREADABLE) == [str(own.folder / "checkpoint-10.json")] * FRUITLESS
    assert "step-5" in [path.name for path in checkpoints(own.run)]
