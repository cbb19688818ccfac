"""Catch up with earlier processes of oppa that trained the run: the changes they made, and what nobody has written down."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from oppa.control.own_trainer.attempt import OwnAttempt
from oppa.control.own_trainer.contract import AttemptTerms
from oppa.control.own_trainer.run_book import RunBook
from oppa.errors import MeasurementError, TrainingError
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import attempts_of
from oppa.training.run.standing_lines import StandingLines
from oppa.trials.trial_folder import ATTEMPT


def catch_up(book: RunBook) -> float | None:
    """Count the changes of earlier processes, and write down what the trainer reported after the last of them was killed.

    Returns:
        Unix time of the last step that was written down before; None without one.

    Raises:
        CheckpointError: the ledger is damaged.
    """
    book.count_changes(ledger.lines(book.folder, steps=False))
    started = {number: path for number, path in attempts_of(book.folder).items() if (path / ATTEMPT).exists()}
    if not started:
        return None
    last, ended = started[max(started)], ledger.last(book.folder)
    step: Line | None = None
    for step in _steps(book.folder):
        book.resume(step)
    with contextlib.suppress(MeasurementError, TrainingError):  # what is damaged is lost, as after any failure
        terms = AttemptTerms.read(last)
        if terms is not None and ended is not None and ended["event"] != ledger.ENDED:
            attempt = OwnAttempt(last, terms, book, seen=book.step)
            while attempt.read_steps():  # all of them, because the last checkpoint comes after the last step
                pass
            attempt.read()
    return step["time"] if step is not None else None


def _steps(folder: Path) -> Iterator[Line]:
    """Yield the valid steps."""
    return (line for line in StandingLines(folder) if line["event"] == ledger.STEP)
