"""A failed run is tried again, or given up; its ledger records what became of a change."""

from pathlib import Path

import pytest

from oppa.training.run import ledger
from oppa.training.run.run_folder import checkpoint_of
from oppa.training.run.supervision import FRUITLESS, Attempts, Ending
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import Outcome


def failed(attempts: Attempts, outcome: Outcome = "failed", *, has_trained: bool = True, is_last: bool = False) -> Ending | None:
    return attempts.failed(TrialResult(outcome=outcome, seconds=1.0), has_trained=has_trained, is_last=is_last)


@pytest.mark.parametrize(("outcome", "ending"), [("failed", Ending.FAILED), ("interrupted", Ending.REVOKED)])
def test_a_run_is_given_up_after_failures_in_a_row_without_a_new_checkpoint(outcome: Outcome, ending: Ending, tmp_path: Path) -> None:
    attempts, endings = Attempts(tmp_path), []
    for _ in range(FRUITLESS):
        attempts.begin()
        endings.append(failed(attempts, outcome))
    assert endings == [None] * (FRUITLESS - 1) + [ending] and attempts.count == FRUITLESS


@pytest.mark.parametrize("checkpoints", [True, False], ids=["checkpoint", "success"])
def test_a_new_checkpoint_or_a_success_begins_the_count_anew(checkpoints: bool, tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    for number in range(3 * FRUITLESS):
        attempts.begin()
        if checkpoints:
            checkpoint_of(tmp_path, number).mkdir(parents=True)
        else:
            attempts.forget_failures()
        assert failed(attempts) is None


def test_a_run_that_fails_before_its_first_step_or_after_a_stop_is_not_tried_again(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    attempts.begin()
    assert failed(attempts, has_trained=False) is Ending.FAILED and failed(attempts, is_last=True) is Ending.FAILED
    attempts = Attempts(tmp_path)
    attempts.begin()
    assert failed(attempts, "interrupted", has_trained=False) is None, "its hosts were withdrawn"


@pytest.mark.parametrize(
    ("seconds", "failure", "event"), [({"move": 1.0}, "", "changed"), ({}, "it cannot", "refused"), ({"move": 1.0}, "it died", "undone")]
)
def test_a_change_is_made_refused_or_undone(seconds: dict[str, float], failure: str, event: str) -> None:
    assert ledger.change_event(seconds, failure) == event
