"""Create the tables of a study's file, and migrate a file of an earlier version to the current one in a single transaction.

The version is the file's `PRAGMA user_version`. A change of the tables appends a migration, and adapts `TABLES`.

    1    prediction in two columns; the first files lack `pairing` and the facts of a session
    2    prediction as one JSON value, with memory
    3    several search trials of one configuration
    4    the table `sittings` is called `sessions`
    5    seconds that were granted to a trial, and seconds in which a session held its devices between trials
    6    the time until which a session has counted the latter, while it holds devices
    7    the hosts of a trial
"""

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from oppa.errors import StudyError

TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE trials (
    id INTEGER PRIMARY KEY, configuration TEXT NOT NULL, configuration_id TEXT NOT NULL, purpose TEXT NOT NULL, pairing TEXT,
    tuner TEXT NOT NULL, token INTEGER NOT NULL, lease_until REAL NOT NULL, started_at REAL NOT NULL,
    prediction TEXT,
    outcome TEXT, cause TEXT, rank INTEGER, traceback TEXT, step_times_s TEXT,
    steps_per_s REAL, variance REAL, memory_bytes INTEGER, seconds REAL, setup_s REAL, granted_s REAL, hosts TEXT
)""",
    "CREATE INDEX trials_of_a_configuration ON trials (configuration_id)",
    """CREATE TABLE sessions (
    tuner TEXT PRIMARY KEY, started_at REAL NOT NULL, seen_at REAL NOT NULL, facts TEXT NOT NULL, idle_s REAL NOT NULL DEFAULT 0,
    idle_from REAL
) WITHOUT ROWID""",
)
"""Statements that create the tables of the current version."""

Migration = Callable[[sqlite3.Connection], None]


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of the current version in an empty file; the caller holds a transaction."""
    for statement in TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def require_known(version: int, folder: Path) -> None:
    """Refuse a version that this oppa cannot read; raises StudyError."""
    if version > SCHEMA_VERSION:
        raise StudyError(
            f"`{folder}` has schema version {version}, and this oppa reads versions up to {SCHEMA_VERSION}",
            hint="upgrade oppa: a later version made this study",
        )


def migrate(connection: sqlite3.Connection, folder: Path) -> None:
    """Apply the missing migrations to a file; the caller holds a transaction, so all of them take place or none.

    Raises:
        StudyError: a tuner of an older oppa still holds a trial, or another process has migrated to a later version.
    """
    version = version_of(connection)
    require_known(version, folder)
    if version == SCHEMA_VERSION:
        return
    if connection.execute("SELECT 1 FROM trials WHERE outcome IS NULL AND lease_until > ?", (time.time(),)).fetchone():
        raise StudyError(
            f"`{folder}` has schema version {version}, and a tuner of an older oppa uses it",
            hint="run this command again a minute after that tuner has ended",
        )
    for apply in _MIGRATIONS[version - 1 :]:
        apply(connection)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a file; 0 if it is not a study."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _to_2(connection: sqlite3.Connection) -> None:
    if "pairing" not in _columns(connection, "trials"):
        connection.execute("ALTER TABLE trials ADD COLUMN pairing TEXT")
        connection.execute("ALTER TABLE sittings ADD COLUMN facts TEXT NOT NULL DEFAULT '{}'")
    connection.execute("ALTER TABLE trials ADD COLUMN prediction TEXT")
    predicted = connection.execute("SELECT predicted_steps_per_s, predicted_log_stddev, id FROM trials").fetchall()
    for steps_per_s, log_stddev, trial in predicted:
        if steps_per_s is not None:
            prediction = json.dumps({"steps_per_s": steps_per_s, "log_stddev": log_stddev})  # SQLite's own JSON keeps 15 digits only
            connection.execute("UPDATE trials SET prediction = ? WHERE id = ?", (prediction, trial))
    connection.execute("ALTER TABLE trials DROP COLUMN predicted_steps_per_s")
    connection.execute("ALTER TABLE trials DROP COLUMN predicted_log_stddev")


def _to_3(connection: sqlite3.Connection) -> None:
    connection.execute("DROP INDEX one_search_trial")
    connection.execute("CREATE INDEX trials_of_a_configuration ON trials (configuration_id)")


def _to_4(connection: sqlite3.Connection) -> None:
    columns = "tuner TEXT PRIMARY KEY, started_at REAL NOT NULL, seen_at REAL NOT NULL, facts TEXT NOT NULL"
    connection.execute(f"CREATE TABLE sessions ({columns}) WITHOUT ROWID")
    connection.execute("INSERT INTO sessions SELECT tuner, started_at, seen_at, facts FROM sittings")
    connection.execute("DROP TABLE sittings")


def _to_5(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE trials ADD COLUMN granted_s REAL")
    connection.execute("ALTER TABLE sessions ADD COLUMN idle_s REAL NOT NULL DEFAULT 0")


def _to_6(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE sessions ADD COLUMN idle_from REAL")


def _to_7(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE trials ADD COLUMN hosts TEXT")


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}


_MIGRATIONS: tuple[Migration, ...] = (_to_2, _to_3, _to_4, _to_5, _to_6, _to_7)
"""The migration to version n + 2 at index n."""
SCHEMA_VERSION = len(_MIGRATIONS) + 1
