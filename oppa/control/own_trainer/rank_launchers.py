"""Launch the ranks of a run: the present ones, and those of the next layout, which wait for their terms. End the ranks before."""

import functools
import shutil
from collections.abc import Callable, Sequence

from oppa.control.own_trainer.contract import Abilities
from oppa.control.own_trainer.early_start import EarlyLauncher, EarlyStart, can_start_early, has_memory
from oppa.control.own_trainer.resizing import Resizing
from oppa.control.own_trainer.run_book import EARLY_FAILED, RunBook
from oppa.errors import StudyError
from oppa.training.run.run_folder import RunSpec, new_attempt
from oppa.trials.launcher import Launcher
from oppa.trials.local import LocalLauncher
from oppa.trials.trial_folder import TrialSpec


class RankLaunchers:
    """Keeps the launchers of a run.

    Args:
        present: Launcher of the first attempt.
        book: Ledger of the run.
        resizing: Hosts of the run.
    """

    def __init__(self, present: Launcher, book: RunBook, resizing: Resizing) -> None:
        self.present = present
        """Launcher of the present attempt."""
        self.early: EarlyStart | None = None
        """Ranks of the next layout, which wait until the present ones have left."""
        self._book, self._resizing = book, resizing
        self._former: Launcher | None = None
        """Launcher of the ranks before, which have ended."""

    @property
    def hosts(self) -> Sequence[str]:
        """Return the names of the hosts of the next attempt: those of ranks that wait, if there are any."""
        return (self.early or self.present).hosts

    def start_early(self, able: Abilities, run: RunSpec) -> bool:
        """Start the ranks of a new layout, on as many hosts as the run then has; return False if that is not possible now."""
        make: Callable[[Callable[[], None]], EarlyLauncher]
        if not can_start_early(able, run.problem):
            return False
        if self._resizing.shares_hosts:
            make = functools.partial(self._resizing.launcher, run.problem.cluster.hosts)
        elif isinstance(self.present, LocalLauncher) and has_memory():
            make = self.present.another
        else:
            return False
        folder = new_attempt(self._book.folder)
        try:
            self.early = EarlyStart(folder, spec_of(run, int(folder.name)), make)
        except (OSError, StudyError) as error:
            self._book.note(EARLY_FAILED, failure=str(error))
        return self.early is not None

    def note_early_failure(self) -> str:
        """Write down why ranks that started early have ended, and return it; empty if they have not. Their layout may still be tried."""
        failure = self.early.failure if self.early is not None else ""
        if failure:
            self._book.note(EARLY_FAILED, failure=failure)
        return failure

    def drop_early(self) -> None:
        """End ranks that wait, and return hosts that only they had; their folder stays only if it explains why they ended."""
        if (early := self.early) is not None:
            self.early, failed = None, bool(early.failure)
            early.close()
            self._resizing.keep()
            if not failed:
                shutil.rmtree(early.folder, ignore_errors=True)

    def take_over(self) -> Launcher:
        """Return the launcher of the next attempt, which is that of ranks that wait, if there are any; the ranks before have ended."""
        if (early := self.early) is None:
            return self.present
        self.early = None
        self._follow(early.launcher)
        return early

    def move(self) -> None:
        """Launch the next attempts on the present hosts of the run, whose number has changed."""
        self._follow(self._resizing.launcher())

    def end_former(self) -> None:
        """End the launcher of the ranks before, and return hosts that only they had."""
        if (former := self._former) is not None:
            self._former = None
            former.close()
            self._resizing.keep()

    def close(self) -> None:
        """End all ranks, and return the hosts that were requested while the run trained."""
        self.drop_early()
        self.end_former()
        self.present.close()
        self._resizing.close()

    def _follow(self, launcher: Launcher) -> None:
        self.end_former()
        self._former, self.present = self.present, launcher


def spec_of(run: RunSpec, attempt: int) -> TrialSpec:
    """Return what an attempt of a run starts."""
    return TrialSpec.of(run.problem.restored, run.configuration, study=run.uuid, trial=attempt, steps=0)
