"""The order that a run's pipeline goes in where `schedule = "search"`: taken up where one is stored, else searched for and stored.

An order is stored in the run's folder, by configuration, when the run has found it, and in its scale table, for each size that the job may
have (`oppa.pipeline.stored_orders`). So a job whose pipeline changes its length goes on in an order that was searched for, from its next
step on, and in one that it has found before when it comes back.
"""

import logging
import time
from pathlib import Path

from oppa.errors import InputError, OppaError
from oppa.pipeline import stored_orders
from oppa.pipeline.configured import searches, shape_of
from oppa.pipeline.order_file import order_of
from oppa.problem.configuration import Configuration
from oppa.training.ledger import Ledger
from oppa.training.run import TrainingRun
from oppa.training.run_folder import SCALES
from oppa.training.searching import ORDER, Searching

_log = logging.getLogger(__name__)


class KeptOrder:
    """Of one run, as each of its ranks has it; rank 0 alone reads, searches and writes.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._searching: Searching | None = None
        self._taken = False
        """The pipeline goes in an order that was stored."""

    def take_up(self, run: TrainingRun, ledger: Ledger | None) -> None:
        """Go on in the order that is stored for the run's configuration, if one is; all ranks call it where a replica was made."""
        self._taken = False
        if not searches(run.configuration):
            return
        if text := run.told(self._stored(run.configuration) if run.mesh.rank == 0 else ""):
            run.reorder(order_of(text, ORDER))
            self._taken = True
            _write(ledger, "order_taken_up", run)

    def search(self, configuration: Configuration) -> None:
        """Search for an order, now that there is a profile, unless one was taken up."""
        if searches(configuration) and not self._taken:
            self.end_search()
            self._searching = Searching(self._folder, configuration)

    def found(self, run: TrainingRun, ledger: Ledger) -> str:
        """Return the order that was found since the last step; empty if none was."""
        if self._searching is None:
            return ""
        try:
            found = self._searching.found()
        except OppaError as error:
            _log.warning("%s; the order stays as it is", error.message)
            self._searching = None
            return ""
        if found is None:
            return ""
        self._searching = None
        passes: str = found.pop("order")
        order = order_of(passes, ORDER)
        if order.shape != shape_of(run.configuration):  # the batch has changed meanwhile
            return ""
        _write(ledger, "reordered", run, **found)
        try:
            stored_orders.store(self._folder, run.configuration, order)
        except OSError as error:
            _log.warning("the order that was found is not stored: %s", error)
        return passes

    def end_search(self) -> None:
        """End a search that is under way, as what it is for has changed."""
        if self._searching is not None:
            self._searching.close()
            self._searching = None

    def _stored(self, configuration: Configuration) -> str:
        """The order that the run has found for a configuration, or that its scale table has; empty if neither has."""
        for folder in (self._folder, self._folder / SCALES):
            try:
                if text := stored_orders.stored(folder, configuration):
                    return text
            except InputError as error:
                _log.warning("%s; an order is searched for", error.message)
        return ""


def _write(ledger: Ledger | None, event: str, run: TrainingRun, **facts: object) -> None:
    if ledger is not None:
        ledger.write(event, time=time.time(), step=run.steps, samples=run.samples, **facts)
