"""Catch up with earlier processes of oppa that trained the run: the changes they made, and what nobody has written down."""

import contextlib

from oppa.control.own_trainer.attempt import OwnAttempt
from oppa.control.own_trainer.contract import AttemptTerms
from oppa.control.own_trainer.run_book import RunBook
from oppa.errors import MeasurementError, TrainingError
from oppa.training.run import ledger
from oppa.training.run.run_folder import attempts_of
from oppa.trials.trial_folder import ATTEMPT


def catch_up(book: RunBook) -> float | None:
    """Count the changes of earlier processes, and write down what the trainer reported after the last of them was killed.

    Returns:
        Unix time of the last step that was written down before; None without one.

    Raises:
        CheckpointError: the ledger is damaged.
    """
    found = ledger.read(book.folder)
    book.count_changes(found)
    started = {number: path for number, path in attempts_of(book.folder).items() if (path / ATTEMPT).exists()}
    if not started:
        return None
    last, lines = started[max(started)], ledger.standing(found)
    steps = [line for line in lines if line["event"] == ledger.STEP]
    with contextlib.suppress(MeasurementError, TrainingError):  # what is damaged is lost, as after any failure
        terms = AttemptTerms.read(last)
        if terms is not None and lines and lines[-1]["event"] != ledger.ENDED:
            book.resume(steps[-1] if steps else None)
            OwnAttempt(last, terms, book, seen=book.step).read()
    return steps[-1]["time"] if steps else None
