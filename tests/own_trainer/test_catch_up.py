"""oppa is killed while it reads what a trainer reports: the next process writes down the rest."""

import contextlib
from pathlib import Path

import pytest

from oppa.control.own_trainer import attempt
from oppa.control.own_trainer.catch_up import catch_up
from oppa.control.own_trainer.checkpoint_record import CheckpointRecord, newest_record
from oppa.control.own_trainer.run_book import RunBook
from oppa.training.run import ledger
from oppa.trials import trial_folder
from tests.own_trainer.followed import Followed


@pytest.fixture
def followed(tmp_path):
    made = Followed(tmp_path)
    made.book.started(made.terms.configuration, None)
    yield made
    made.book.close()


def caught_up(followed: Followed) -> CheckpointRecord:
    """Catch up as another process does, and return the newest record."""
    with contextlib.closing(RunBook(followed.own.run, followed.book.run)) as book:
        catch_up(book)
    return newest_record(followed.own.run)


def saved(followed: Followed, before: Path | None = None) -> Path:
    """Take two steps and save; remove the checkpoint before, as a trainer does that keeps one."""
    followed.step(2)
    path = followed.save(f"{followed.program.plan.step}.pt")
    if before is not None:
        before.unlink()
    return path


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("reads", [False, True])
def test_a_checkpoint_whose_steps_are_written_down_is_recorded_although_its_predecessor_is_gone(followed, steps, reads):
    first = saved(followed)
    if reads:
        followed.attempt.read()
    second = saved(followed, before=first)
    followed.step(steps)
    followed.attempt.read_steps()  # killed before it records the checkpoint
    record = caught_up(followed)
    (line,) = (line for line in followed.own.events(ledger.STEP) if line["step"] == 3)
    assert (record.step, record.checkpoint, record.elapsed_s) == (4, str(second), line["elapsed_s"])


def test_a_checkpoint_that_is_recorded_is_not_recorded_again(followed):
    saved(followed)
    followed.step(1)
    followed.attempt.read()
    caught_up(followed)
    assert len([line for line in ledger.read(followed.own.run) if line["event"] == "recorded"]) == 1


def test_more_steps_than_are_read_at_once_are_all_read_before_the_checkpoint_after_them(followed, monkeypatch):
    monkeypatch.setattr(attempt, "MOST_READS", 1)
    monkeypatch.setattr(trial_folder, "CALL_BYTES", 1000)
    for _ in range(10):
        path = saved(followed)
    followed.step(1)
    record = caught_up(followed)
    assert (record.step, record.checkpoint) == (20, str(path)) and len(followed.own.events(ledger.STEP)) == 21
