"""Choose the checkpoint that an attempt resumes: the newest one, or an earlier one if that cannot be read.

A failure before the first step does not show whether the checkpoint, the machine or the program is at fault. After `PATIENCE` such failures
in the layout that saved a checkpoint, the run passes it over and resumes the one before. The first step from there proves that the newer
checkpoint is unreadable. Only then do the ledger and the records go back. If no checkpoint can be resumed, all records stay.
"""

import contextlib
import dataclasses
from collections import Counter

from oppa.control.own_trainer.checkpoint_record import CheckpointRecord, newest_record
from oppa.control.own_trainer.run_book import PASSED_OVER, UNREADABLE, RunBook
from oppa.errors import CheckpointError
from oppa.problem.configuration import Configuration
from oppa.training.run.run_folder import CHECKPOINTS
from oppa.training.run.supervision import FRUITLESS
from oppa.trials.trial import TrialResult

PATIENCE = 2
"""Failures before the first step after which a checkpoint is passed over: one alone may be that of a machine."""


class Resumption:
    """Chooses the record that the next attempt resumes.

    Args:
        book: Ledger of the run.
    """

    def __init__(self, book: RunBook) -> None:
        self._book = book
        self._record: CheckpointRecord | None = None
        self._failures = 0
        """Consecutive failures before the first step from the record."""
        self._passed = dict[int, CheckpointRecord]()
        """Records that were passed over, by their steps."""
        self._returns = Counter[int]()
        """Numbers of returns to each record: a trainer may write unreadable checkpoints again and again."""

    def choose(self) -> CheckpointRecord | None:
        """Return the newest record that was not passed over; None at the beginning.

        Raises:
            CheckpointError: a record is damaged, or no checkpoint is present.
        """
        folder = self._book.folder
        self._record = newest_record(folder, passed=self._passed) or newest_record(folder)
        return self._record

    def begin(self, configuration: Configuration) -> None:
        """Begin an attempt in the ledger, which goes back to an earlier record only at the first step."""
        if self._newer():
            self._book.go_to(self._record)
        else:
            self._book.started(configuration, self._record)

    def proved(self, configuration: Configuration) -> None:
        """Handle the first step of an attempt: its record is readable, and newer ones that were passed over are not."""
        self._failures = 0
        if newer := self._newer():
            for each in newer:
                self._book.dropped(each.step)
            self._book.started(configuration, self._record)
            for each in newer:
                self._book.note(UNREADABLE, place=each.checkpoint)
            self._passed.clear()

    def failed(self, cause: str) -> bool:
        """Count a failure before the first step, in the layout of the record; return True if an earlier record comes next."""
        record = self._record
        self._failures += 1
        if record is None or self._failures < PATIENCE or (earlier := self._before(record)) is None:
            return False
        self._failures = 0
        self._passed[record.step] = record
        self._returns[earlier.step] += 1
        self._book.note(PASSED_OVER, place=record.checkpoint, earlier=earlier.checkpoint, failure=cause)
        return True

    def explained(self, result: TrialResult) -> TrialResult:
        """Return the result of the last attempt, with what to repair if no checkpoint could be resumed."""
        if self._record is None or self._failures < PATIENCE:
            return result
        repair = f"repair it, or remove `{self._book.folder / CHECKPOINTS}` to train from the beginning"
        cause = f"{result.cause}; no step was taken after resuming `{self._record.checkpoint}`: {repair}"
        return dataclasses.replace(result, cause=cause)

    def _newer(self) -> list[CheckpointRecord]:
        """Return the records that were passed over for the present one."""
        return [each for each in self._passed.values() if self._record is not None and each.step > self._record.step]

    def _before(self, record: CheckpointRecord) -> CheckpointRecord | None:
        """Return the record to resume in place of another one; None if there is none, or if the run has returned to it too often."""
        with contextlib.suppress(CheckpointError):
            earlier = newest_record(self._book.folder, passed={*self._passed, record.step})
            if earlier is not None and self._returns[earlier.step] < FRUITLESS:
                return earlier
        return None
