"""Notice that the file of an open study was removed, replaced or overwritten, and write it again from what SQLite holds open.

A trial runs with the rights of the user and can remove the study. The kernel keeps a removed file as long as it is open, and recent changes
are in the write-ahead log. So the study can still be read whole.

Nothing here opens the files: POSIX drops all locks of a process on a file when the process closes any descriptor of it, SQLite's included.
"""

import contextlib
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import NamedTuple

from oppa.atomic_write import draft_beside
from oppa.study.database import connect_new

SMALLEST_PAGE = 512
"""Smallest page of SQLite in bytes; a database has whole pages."""

Inode = tuple[int, int]
"""Device and number of a file."""


class Identity(NamedTuple):
    """Identifies the files that a path names at some moment; None for one that is missing, or cannot be SQLite's."""

    database: Inode | None
    log: Inode | None
    """The write-ahead log; None on network file systems, which have none."""
    shared: Inode | None
    """The index of the log, which processes share in memory."""


def identity(path: Path) -> Identity:
    """Return the identity of the database at a path, and of its log."""
    return Identity(_inode(path, page=SMALLEST_PAGE), *map(_inode, log_files(path)))


def log_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the write-ahead log and of its index."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def is_mixed(found: Identity, opened: Identity) -> bool:
    """Return True if only some of the files were removed or replaced, so that no process can read what the path names now.

    A tuner that writes a study again makes all files anew.
    """
    if found.database == opened.database:
        return found.log is None and opened.log is not None
    return found.database is None or (found.log is not None and found.log == opened.log)


def rewrite(connection: sqlite3.Connection, path: Path) -> None:
    """Write the study of an open connection to `path` again; what stands in its place is set aside under another name.

    Raises:
        sqlite3.Error: the connection cannot read the study whole either.
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = f".replaced-{os.getpid()}-{time.time_ns()}"
    with draft_beside(path) as draft:
        with contextlib.closing(connect_new(draft)) as copy:
            connection.backup(copy)
            if (fault := copy.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(f"malformed: {fault}")
        for named in (path, *log_files(path)):
            with contextlib.suppress(FileNotFoundError):
                named.rename(f"{named}{aside}")


def _inode(path: Path, *, page: int = 1) -> Inode | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    whole = stat.S_ISREG(found.st_mode) and (page == 1 or (found.st_size > 0 and found.st_size % page == 0))
    return (found.st_dev, found.st_ino) if whole else None
