"""Hold the file of a study open, and write it again if it was removed, replaced or overwritten meanwhile."""

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oppa.errors import StudyError
from oppa.study import database, open_file

_log = logging.getLogger(__name__)


class StudyFile:
    """Keeps the `study.db` of a folder open. Before each use it is compared with what its path names now.

    Raises:
        StudyError: the file cannot be used, here and in every method.
    """

    def __init__(self, folder: Path, *, host: str) -> None:
        self._folder, self._host = folder, host
        self.path = folder / database.FILE
        self._open()

    def _open(self) -> None:
        self.connection = database.connect(self._folder, host=self._host)
        self.meta = database.meta_of(self.connection)
        self._opened = open_file.identity(self.path)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def select(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(query).fetchall()]

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Return the connection, to read by inside the context."""
        self._keep()
        with database.disk_errors(self._folder):
            yield self.connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block as a transaction: all or nothing, and on disk when it returns."""
        with self.reading() as connection, database.transaction(connection):
            yield connection

    def check(self) -> None:
        """Make sure that the next command can read the file; write it again if a trial has overwritten it."""
        self._keep()
        if not self._was_put_back():
            self._reopen(rewrite=True)

    def _keep(self) -> None:
        """Write the file again if it was removed or replaced since it was opened, and open the new one."""
        if (found := open_file.identity(self.path)) != self._opened:
            self._reopen(rewrite=open_file.is_mixed(found, self._opened) or not self._was_put_back())

    def _reopen(self, *, rewrite: bool) -> None:
        with database.disk_errors(self._folder), contextlib.closing(self.connection):
            if rewrite:
                open_file.rewrite(self.connection, self.path)
                _log.warning("`%s` was removed or changed from outside; it was written again, with all recorded trials", self.path)
        self._open()

    def _was_put_back(self) -> bool:
        """Return True if the folder holds this study, with no fewer trials: another tuner has written it again."""
        with contextlib.suppress(StudyError, sqlite3.Error), contextlib.closing(StudyFile(self._folder, host=self._host)) as found:
            ours, theirs = (each.connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0] for each in (self, found))
            return bool(found.meta["uuid"] == self.meta["uuid"] and theirs >= ours)
        return False
