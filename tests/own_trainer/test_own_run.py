"""A user's own trainer under supervision: its samples once and in order, whatever changes, stops and dies."""

import pytest

from oppa.training.run import ledger
from tests.own_trainer.own_runs import OwnRun, StopBehind

pytestmark = pytest.mark.slow


def test_a_trainer_is_trained_to_its_end_and_its_ledger_is_whole(tmp_path):
    own = OwnRun(tmp_path, samples=100)
    result = own.train()
    assert result.finished, result.outcome
    assert ledger.require_whole(result.lines) == 100
    assert own.samples() == list(range(100))
    assert own.events(ledger.ENDED)[0]["finished"]


def test_a_stop_saves_and_the_same_call_goes_on(tmp_path):
    own = OwnRun(tmp_path, samples=400)
    stopped = own.train(callback=StopBehind(5))
    assert stopped.outcome.ending.value == "stopped" and 0 < ledger.require_whole(stopped.lines) < 400
    result = own.train()
    assert result.finished and own.samples() == list(range(400))
    whole = OwnRun(tmp_path / "whole", samples=400) if (tmp_path / "whole").mkdir() is None else own
    assert whole.train().finished
    assert own.weight() == pytest.approx(whole.weight(), abs=1e-12)
