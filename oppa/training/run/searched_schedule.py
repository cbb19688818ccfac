"""Manage the schedule of a run with `schedule = "search"`: use a stored schedule, or search for one and store it.

A schedule that the run finds is stored in its folder by configuration. Its scale table stores one for each size that the job may have
(`oppa.pipeline.stored_schedules`). A job whose pipeline changes its length therefore uses a searched schedule from its next step on. When
it returns to an earlier length, it uses the schedule that it found then.
"""

import logging
from pathlib import Path

from oppa.errors import InputError, OppaError
from oppa.pipeline import stored_schedules
from oppa.pipeline.from_configuration import searches
from oppa.pipeline.torch_csv import parse_schedule
from oppa.problem.configuration import Configuration
from oppa.training.run.ledger import ORDER_TAKEN_UP, REORDERED, Ledger, note
from oppa.training.run.run_folder import SCALES
from oppa.training.run.schedule_search_process import ORDER, ScheduleSearch
from oppa.training.run.training_run import TrainingRun

_log = logging.getLogger(__name__)


class SearchedRunSchedule:
    """Keeps the schedule of one run on each of its ranks; only rank 0 reads, searches and writes.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._searching: ScheduleSearch | None = None
        self._taken = False
        """True if the pipeline uses a stored schedule."""

    def take_up(self, run: TrainingRun, ledger: Ledger | None) -> None:
        """Use the stored schedule of the run's configuration, if there is one; all ranks call it after a replica was created."""
        self._taken = False
        if not searches(run.configuration):
            return
        if text := run.broadcast(self._stored(run.configuration) if run.mesh.rank == 0 else ""):
            run.set_schedule(parse_schedule(text, ORDER))
            self._taken = True
            note(ledger, ORDER_TAKEN_UP, run)

    def search(self, configuration: Configuration) -> None:
        """Start a search for a schedule from the run's profile, unless a stored schedule is used."""
        if searches(configuration) and not self._taken:
            self.end_search()
            self._searching = ScheduleSearch(self._folder, configuration)

    def found(self, run: TrainingRun, ledger: Ledger | None) -> str:
        """Return the schedule that was found since the last step, as CSV text, and store it; empty if none was found."""
        if self._searching is None:
            return ""
        try:
            found = self._searching.found()
        except OppaError as error:
            _log.warning("%s; the pipeline keeps its schedule", error.message)
            self._searching = None
            return ""
        if found is None:
            return ""
        self._searching = None
        passes: str = found.pop("order")
        note(ledger, REORDERED, run, **found)
        try:
            stored_schedules.store(self._folder, run.configuration, parse_schedule(passes, ORDER))
        except OSError as error:
            _log.warning("the new schedule was not stored: %s", error)
        return passes

    def end_search(self) -> None:
        """End a running search; its configuration is no longer used."""
        if self._searching is not None:
            self._searching.close()
            self._searching = None

    def _stored(self, configuration: Configuration) -> str:
        """Return the stored schedule of a configuration, first from the run, then from its scale table; empty if there is none."""
        for folder in (self._folder, self._folder / SCALES):
            try:
                if text := stored_schedules.stored(folder, configuration):
                    return text
            except InputError as error:
                _log.warning("%s; searching for a schedule", error.message)
        return ""
