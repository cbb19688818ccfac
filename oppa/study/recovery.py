"""Take over the trials of tuners that have ended: mark them as interrupted, and invalidate their leases."""

import re
import sqlite3

from oppa.study import held_time
from oppa.trials.processes import Process, is_living


def recover(connection: sqlite3.Connection, *, host: str, now: float) -> list[int]:
    """Mark the trials of dead tuners as interrupted, and return the ids of these trials; the caller holds a transaction.

    Args:
        host: Name of this host, whose processes can be checked; a tuner on another one, or in another container, is dead when its
            lease ends.
        now: Seconds since 1970.
    """
    rows = connection.execute("SELECT id, tuner, lease_until, started_at, granted_s FROM trials WHERE outcome IS NULL").fetchall()
    gone = [row for row in rows if held_time.number_in(row["lease_until"]) < now or _is_dead(row["tuner"], host)]
    for row in gone:
        connection.execute(
            "UPDATE trials SET outcome = 'interrupted', cause = 'its tuner has ended', token = token + 1, seconds = ? WHERE id = ?",
            (held_time.unrecorded_s(row, now=now), row["id"]),
        )
        connection.execute("UPDATE sessions SET idle_from = NULL WHERE tuner = ?", (row["tuner"],))
    return [row["id"] for row in gone]


def _is_dead(tuner: str, host: str) -> bool:
    """Return True if the tuner ran on this host and has ended; the tuner of a damaged row counts as living until its lease ends."""
    parts = re.fullmatch(r"(.*)/(\d+):(\d+)(:\d+)?", str(tuner))
    return parts is not None and parts[1] == host and not is_living(Process(int(parts[2]), int(parts[3])))
