"""Create the SQLite file of a study atomically, open it, and migrate it.

Every commit is on disk before it returns (WAL, synchronous=FULL). Only its owner can open the file, because anybody who reads it can hold
SQLite's locks. A network file system breaks WAL's shared memory. There the file is
opened without WAL, and by one host only. This is the host that created it, until another host finds that no tuner uses it. A file in
a folder that cannot be written, or on a full disk, is read from a copy in memory.
"""

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oppa.atomic_write import draft_beside
from oppa.errors import StudyError, reason
from oppa.private_files import make_private
from oppa.regular_file import parse_json
from oppa.study.migrations import SCHEMA_VERSION, create_tables, migrate, require_known, version_of
from oppa.trials.file_systems import MOUNTS, is_on_network

FILE = "study.db"
OF_A_STUDY = "best", "trials"
"""Names that a study replaces in its folder: the folder of the winner, and that of the trials."""
NO_ROOM = "SQLITE_IOERR_SHMSIZE"
"""Error of SQLite if a full disk has no room for the memory that its processes share."""
MOST_LISTED = 6
"""Studies that a hint names."""


def create(folder: Path, meta: dict[str, str]) -> None:
    """Create the study's file atomically. If another process was faster, its file stays.

    Raises:
        StudyError: the folder cannot be used, or holds what a study would replace.
    """
    others = [name for name in OF_A_STUDY if (folder / name).exists()]  # before its file, as a tuner that has made it may go on
    if (folder / FILE).exists():
        return
    if others:
        held = " and ".join(f"`{name}`" for name in others)
        raise StudyError(f"`{folder}` holds {held}, but no study", hint="name another folder: a new study would replace them")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(FileExistsError),
            draft_beside(folder / FILE, exclusive=True) as draft,
            contextlib.closing(connect_new(draft)) as connection,
        ):
            connection.executescript(_pragmas(folder, MOUNTS))  # two tuners that both switch the journal of one file would lock each other
            with transaction(connection):
                create_tables(connection)
                connection.executemany("INSERT INTO meta VALUES (?, ?)", sorted(meta.items()))


def connect_new(path: Path) -> sqlite3.Connection:
    """Create a file that only its owner can open; SQLite gives its log and the index of it the same mode."""
    make_private(path, create=True)
    return sqlite3.connect(path, isolation_level=None)


def _studies_in(folder: Path) -> str:
    """Return a hint for a folder that is no study: the studies in it, or how to create one."""
    inside = sorted(found.parent.name for found in folder.glob(f"*/{FILE}"))
    if not inside:
        return "create one with `oppa tune JOB --study FOLDER`; `oppa report` reports a run"
    return f"name one of its studies: {', '.join(inside[:MOST_LISTED])}{', ...' if len(inside) > MOST_LISTED else ''}"


def connect(folder: Path, *, host: str, mounts: Path = MOUNTS) -> sqlite3.Connection:
    """Open the study's file, check it, and migrate it if an earlier version of oppa made it.

    In a folder that cannot be written, or on a full disk, the connection reads a copy, and refuses changes.

    Raises:
        StudyError: the file is missing, damaged, not a study, or of a later version.
        StudyError: an older oppa uses the study, or another host on a network file system.
    """
    path = folder / FILE
    if not path.is_file():
        raise StudyError(f"`{folder}` is not a study folder", hint=_studies_in(folder))
    with disk_errors(folder):
        connection, writable = _open(path)
        network = writable and is_on_network(folder, mounts)
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda text: text.decode(errors="replace")  # damaged text costs its row, not the study
        try:
            _check(connection, folder)
            owner = meta_of(connection)["host"]
            if network and owner != host:
                _take_over(connection, folder, owner=owner, host=host)
            if writable:
                connection.executescript(_pragmas(folder, mounts))
            if version_of(connection) != SCHEMA_VERSION:
                with transaction(connection):
                    migrate(connection, folder)
            connection.execute(f"PRAGMA query_only={not writable}")
        except BaseException:
            connection.close()
            raise
    return connection


def _open(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Return a connection to the file, or else to a copy of it, and whether changes are possible."""
    if not os.access(path.parent, os.W_OK):
        with tempfile.TemporaryDirectory() as folder:
            for name in (FILE, f"{FILE}-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(path.with_name(name), Path(folder, name))
            return _copy(Path(folder, FILE)), False
    connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema")
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorname == NO_ROOM:
            return _copy(path), False
        raise
    return connection, True


def _copy(path: Path) -> sqlite3.Connection:
    """Return a copy in memory of a file, with the commits that only its log has; it is locked meanwhile, which takes no shared memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with contextlib.closing(sqlite3.connect(path)) as source:
        source.execute("PRAGMA locking_mode=EXCLUSIVE")
        source.backup(connection)
    return connection


def _pragmas(folder: Path, mounts: Path) -> str:
    """Return the statements that make commits durable on the folder's file system."""
    return f"PRAGMA journal_mode={'DELETE' if is_on_network(folder, mounts) else 'WAL'}; PRAGMA synchronous=FULL;"


def _take_over(connection: sqlite3.Connection, folder: Path, *, owner: str, host: str) -> None:
    """Make this host the owner of the study, for example after a requeue; raises StudyError if a tuner of its owner holds a trial."""
    with transaction(connection):
        if connection.execute("SELECT 1 FROM trials WHERE outcome IS NULL AND lease_until > ?", (time.time(),)).fetchone():
            raise StudyError(
                f"`{folder}` is on a network file system, and the host `{owner}` uses it, not `{host}`",
                hint=f"run this command on `{owner}`, or here a minute after its tuner has ended",
            )
        connection.execute("UPDATE meta SET value = ? WHERE key = 'host'", (json.dumps(host),))


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run a block as a transaction: all or nothing, with exclusive access to the file, and on disk when it returns."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Convert errors of SQLite or the disk to StudyError with a hint: a full disk, a damaged file, no permission."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if _lacks_room(error, folder) else error
        raise StudyError(f"the study in `{folder}` cannot be used: {reason(cause)}", hint=_hint(cause, folder)) from cause


def _lacks_room(error: Exception, folder: Path) -> bool:
    """Return True if SQLite had no room for shared memory, or if the copy that is read without it was to be changed."""
    name = getattr(error, "sqlite_errorname", "")
    return name == NO_ROOM or (name == "SQLITE_READONLY" and all(os.access(path, os.W_OK) for path in (folder, folder / FILE)))


def _hint(error: Exception, folder: Path) -> str:
    text = str(error)
    if "full" in text or "No space" in text:
        return "free some disk space and run the same command again: all recorded trials are safe"
    if "malformed" in text or "not a database" in text:
        return f"start a new study; the files of the trials are still in `{folder / 'trials'}`"
    if "readonly" in text or "Read-only" in text or "unable to open" in text or isinstance(error, PermissionError):
        return "choose a writable folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "name a folder: a file has this name, or that of a folder above"
    if isinstance(error, FileNotFoundError):
        return "name a folder in one where you can make folders"
    return "run the same command again: all recorded trials are safe"


def _check(connection: sqlite3.Connection, folder: Path) -> None:
    if (fault := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(f"malformed: {fault}")
    if (version := version_of(connection)) == 0:
        raise StudyError(f"`{folder / FILE}` is empty or not a study of oppa", hint="move the folder away, or choose another one")
    require_known(version, folder)


def meta_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the study's metadata: uuid, problem, fingerprint, host, creation time.

    Raises:
        StudyError: a value is missing or damaged.
    """
    try:
        meta = {row["key"]: parse_json(row["value"]) for row in connection.execute("SELECT key, value FROM meta")}
        if not isinstance(meta["problem"], dict) or not all(isinstance(meta[name], str) for name in ("uuid", "fingerprint", "host")):
            raise ValueError("a value has another type")
    except (ValueError, TypeError, KeyError) as error:
        hint = "start a new study; the files of its trials are still there"
        raise StudyError(f"the facts of the study are damaged: {error}", hint=hint) from None
    return meta
