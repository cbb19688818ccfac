"""Notice that the file of an open study was removed, replaced or overwritten, and write it again from what SQLite holds open.

A trial runs with the rights of the user and can remove the study. The kernel keeps a removed file as long as it is open, and recent changes
are in the write-ahead log, so that the study can still be read whole.
"""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from oppa.atomic_write import draft_beside
from oppa.errors import MeasurementError
from oppa.trials import untrusted_file

_MAGIC = b"SQLite format 3\0"
SUFFIXES = ("", "-wal", "-shm")

Identity = tuple[tuple[int, int] | None, ...]
"""Device and inode of the file and of its two companions; None for one that is missing or is not SQLite's."""


def identity(path: Path) -> Identity:
    """Return the identity of the files that `path` names now."""
    return tuple(_inode(path.with_name(path.name + suffix), magic=b"" if suffix else _MAGIC) for suffix in SUFFIXES)


def shares_any(one: Identity, other: Identity) -> bool:
    """Return True if two identities have a file in common; a tuner that writes a study again makes all of its files anew."""
    return any(first is not None and first == second for first, second in zip(one, other, strict=True))


def rewrite(connection: sqlite3.Connection, path: Path) -> None:
    """Write the study of an open connection to `path` again; what stands in its place is set aside under another name.

    Raises:
        sqlite3.Error: the connection cannot read the study whole either.
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = f".replaced-{os.getpid()}-{time.time_ns()}"
    with draft_beside(path) as draft:
        with contextlib.closing(sqlite3.connect(draft)) as copy:
            connection.backup(copy)
            if (fault := copy.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(f"malformed: {fault}")
        for suffix in SUFFIXES:
            named = path.with_name(path.name + suffix)
            with contextlib.suppress(FileNotFoundError):
                named.rename(f"{named}{aside}")


def _inode(path: Path, *, magic: bytes) -> tuple[int, int] | None:
    try:
        with untrusted_file.opened(path) as file:
            if file is None or file.read(len(magic)) != magic:
                return None
            found = os.fstat(file.fileno())
    except MeasurementError:
        return None
    return found.st_dev, found.st_ino
