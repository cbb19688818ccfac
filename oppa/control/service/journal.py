"""Store the messages of all jobs on disk; a restarted service replays them to restore its state.

A message is acknowledged only after it is stored. Each commit holds all messages since the previous one, so commits are few.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError

FILE = "journal.db"
VERSION = 1

_SCHEMA = """
create table if not exists meta (version integer not null);
create table if not exists jobs (name text primary key, hello text not null) without rowid;
create table if not exists messages (
    job text not null references jobs (name), number integer not null, text text not null, primary key (job, number)
) without rowid;
"""


class Journal:
    """The journal of one service, an SQLite database; every commit is durable (WAL, synchronous=FULL)."""

    def __init__(self, folder: Path) -> None:
        """Open or create the journal in `folder`.

        Raises:
            EnvironmentLackingError: if the folder cannot be written.
            InputError: if the file is damaged or has another format version.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._db = sqlite3.connect(folder / FILE, isolation_level=None)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._db.executescript(_SCHEMA)
            found = self._db.execute("select version from meta").fetchone()
            if found is None:
                self._db.execute("insert into meta values (?)", (VERSION,))
        except sqlite3.OperationalError as error:
            raise EnvironmentLackingError(f"`{folder / FILE}` cannot be used: {error}", hint="choose another folder") from None
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"`{folder / FILE}` is damaged: {error}", hint="move it away: the service creates a new one, and jobs connect again"
            ) from None
        if found is not None and found[0] != VERSION:
            message = f"`{folder / FILE}` has format {found[0]}, but this version of oppa reads {VERSION}"
            raise InputError(message, hint="use the version of oppa that wrote it")

    def begin(self, job: str, hello: str) -> None:
        """Store the hello of a job, or replace it."""
        self._db.execute("insert into jobs values (?, ?) on conflict (name) do update set hello = excluded.hello", (job, hello))

    def add(self, messages: Iterable[tuple[str, int, str]]) -> None:
        """Store messages, given as job, number and text; they are on disk when this returns. Stored numbers are ignored."""
        with self._transaction():
            self._db.executemany("insert or ignore into messages values (?, ?, ?)", messages)

    def forget(self, job: str) -> None:
        """Delete a job and all its messages."""
        with self._transaction():
            self._db.execute("delete from messages where job = ?", (job,))
            self._db.execute("delete from jobs where name = ?", (job,))

    def jobs(self) -> list[tuple[str, str]]:
        """Return the name and the hello of each job, sorted by name."""
        return list(self._db.execute("select name, hello from jobs order by name"))

    def messages(self, job: str) -> Iterator[str]:
        """Yield the messages of a job as JSON texts, by number."""
        for (text,) in self._db.execute("select text from messages where job = ? order by number", (job,)):
            yield text

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a block as one transaction, which is on disk when it ends and rolled back on an exception."""
        self._db.execute("begin")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()
