"""Store the messages of all jobs on disk, and snapshots of the jobs; a restarted service restores its state from both.

A message is acknowledged only after it is stored. Each commit holds all messages since the previous one, so commits are few. One service
at a time has the journal open.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from oppa.control.service.snapshot import Snapshot
from oppa.errors import EnvironmentLackingError, InputError
from oppa.private_files import make_private, private_folder

FILE = "journal.db"
LOCKED_S = 2.0
"""Seconds to wait until a service that ends has closed the journal."""
_BESIDE = ("-wal", "-shm")
"""Endings of the files that SQLite keeps next to a database, with its mode."""
VERSION = 1

_SCHEMA = """
create table if not exists meta (version integer not null);
create table if not exists jobs (name text primary key, hello text not null) without rowid;
create table if not exists messages (
    job text not null references jobs (name), number integer not null, text text not null, primary key (job, number)
) without rowid;
create table if not exists snapshots (job text primary key, number integer not null, state text not null, digest text not null);
create table if not exists runs (job text primary key references jobs (name), run text not null, begun integer not null) without rowid;
"""


class Journal:
    """Stores the journal of one service in an SQLite database; every commit is durable (WAL, synchronous=FULL)."""

    def __init__(self, folder: Path) -> None:
        """Open or create the journal in `folder`.

        Raises:
            EnvironmentLackingError: if the folder cannot be written, or another service uses it.
            InputError: if others may enter the folder, or the file is damaged or has another format version.
        """
        private_folder(folder)
        try:
            self._db = _opened(folder / FILE)
            found = self._db.execute("select version from meta").fetchone()
            if found is None:
                self._db.execute("insert into meta values (?)", (VERSION,))
        except OSError as error:
            raise EnvironmentLackingError(f"`{folder / FILE}` cannot be used: {error.strerror}", hint="choose another folder") from None
        except sqlite3.OperationalError as error:
            hint = "stop the service that uses the folder, or choose another folder" if "locked" in str(error) else "choose another folder"
            raise EnvironmentLackingError(f"`{folder / FILE}` cannot be used: {error}", hint=hint) from None
        except sqlite3.DatabaseError as error:
            raise damaged(folder / FILE, error) from None
        if found is not None and found[0] != VERSION:
            self._db.close()
            message = f"`{folder / FILE}` has format {found[0]}, but this version of oppa reads {VERSION}"
            raise InputError(message, hint="use the version of oppa that wrote it")

    def begin(self, job: str, hello: str, *, run: str = "", begun: int = 0) -> None:
        """Store the hello of a job and its run, or replace them.

        Args:
            job: Name of the job.
            hello: Its first message.
            run: UUID of its run; empty if unknown.
            begun: Number of the last message of earlier runs.
        """
        with self._transaction():
            self._db.execute("insert into jobs values (?, ?) on conflict (name) do update set hello = excluded.hello", (job, hello))
            self._db.execute("insert or replace into runs values (?, ?, ?)", (job, run, begun))

    def add(self, messages: Iterable[tuple[str, int, str]]) -> None:
        """Store messages, given as job, number and text; they are on disk when this returns. Stored numbers are ignored."""
        with self._transaction():
            self._db.executemany("insert or ignore into messages values (?, ?, ?)", messages)

    def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Store snapshots of jobs, whose messages are stored already; an earlier snapshot of a job is replaced."""
        with self._transaction():
            rows = [(each.job, each.number, each.state, each.digest) for each in snapshots]
            self._db.executemany("insert or replace into snapshots values (?, ?, ?, ?)", rows)

    def jobs(self) -> list[tuple[str, str]]:
        """Return the name and the hello of each job, sorted by name."""
        return list(self._db.execute("select name, hello from jobs order by name"))

    def run(self, job: str) -> tuple[str, int]:
        """Return the UUID of a job's run, and the number of the last message of earlier runs; an empty text and 0 if unknown."""
        known = "select cast(run as text), cast(begun as integer) from runs where job = ?"
        return self._db.execute(known, (job,)).fetchone() or ("", 0)

    def snapshot(self, job: str) -> Snapshot | None:
        """Return the snapshot of a job; None if there is none, or the journal lacks the message after which it was taken."""
        stored = "select job, number, state, digest from snapshots natural join (select job, number from messages) where job = ?"
        row = self._db.execute(stored, (job,)).fetchone()
        return None if row is None else Snapshot(job=row[0], number=row[1], state=row[2], digest=row[3])

    def messages(self, job: str, *, after: int = 0) -> Iterator[str]:
        """Yield the messages of a job as JSON texts, by number.

        Args:
            job: Name of the job.
            after: Only messages with larger numbers are returned.
        """
        for (text,) in self._db.execute("select text from messages where job = ? and number > ? order by number", (job, after)):
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


def damaged(path: Path, error: sqlite3.DatabaseError) -> InputError:
    """Return the error for a journal that cannot be read."""
    return InputError(f"`{path}` is damaged: {error}", hint="move it away: the service creates a new one, and jobs connect again")


def _opened(path: Path) -> sqlite3.Connection:
    """Return a connection to a database that only its owner can read, and no other process can open."""
    make_private(path, create=True)
    for ending in _BESIDE:
        make_private(path.with_name(path.name + ending))
    db = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)
    db.execute("pragma locking_mode = exclusive")
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.executescript(_SCHEMA)
    return db
