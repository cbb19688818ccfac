"""What the service was told, on disk: whoever starts it again plays it back, and knows what it knew.

A message is acknowledged only when it is here. Commits are few, each of all that has come since the last one.
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
    """Of one service; durable with every commit (WAL, synchronous=FULL)."""

    def __init__(self, folder: Path) -> None:
        """Raises EnvironmentLackingError if the folder cannot be written, InputError if the journal is not one."""
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
            raise EnvironmentLackingError(f"`{folder / FILE}` cannot be used: {error}", hint="name another folder") from None
        except sqlite3.DatabaseError as error:
            raise InputError(f"`{folder / FILE}` is damaged: {error}", hint="move it away: jobs that connect are known again") from None
        if found is not None and found[0] != VERSION:
            raise InputError(f"`{folder / FILE}` has format {found[0]}", hint=f"this version of oppa reads format {VERSION}")

    def begin(self, job: str, hello: str) -> None:
        """A job, or what it says of itself now."""
        self._db.execute("insert into jobs values (?, ?) on conflict (name) do update set hello = excluded.hello", (job, hello))

    def add(self, messages: Iterable[tuple[str, int, str]]) -> None:
        """Of jobs, by number; they are on disk when this returns."""
        with self._transaction():
            self._db.executemany("insert or ignore into messages values (?, ?, ?)", messages)

    def forget(self, job: str) -> None:
        """A job, and all that it has told."""
        with self._transaction():
            self._db.execute("delete from messages where job = ?", (job,))
            self._db.execute("delete from jobs where name = ?", (job,))

    def jobs(self) -> list[tuple[str, str]]:
        """Names, and what each said of itself."""
        return list(self._db.execute("select name, hello from jobs order by name"))

    def messages(self, job: str) -> Iterator[str]:
        """All that a job has told, in order."""
        for (text,) in self._db.execute("select text from messages where job = ? order by number", (job,)):
            yield text

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing, on disk when it ends."""
        self._db.execute("begin")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
