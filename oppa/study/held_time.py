"""Sum the seconds for which tuners have held devices, as the rows of a study's file state them. A damaged value counts as nothing."""

import math
import sqlite3
from collections.abc import Mapping
from typing import Any

from oppa.study.records import LEASE_S, HeldTime

_IN_TRIAL = "EXISTS (SELECT 1 FROM trials WHERE trials.tuner = sessions.tuner AND outcome IS NULL)"


def held_time(connection: sqlite3.Connection, *, tuner: str, now: float) -> HeldTime:
    """Return the seconds that are spent, granted or reserved at `now`, in seconds since 1970, for a tuner.

    A trial that runs without a grant counts from its start until now.
    """
    running = connection.execute("SELECT tuner, started_at, granted_s FROM trials WHERE outcome IS NULL").fetchall()
    ends = {row["tuner"]: _end(row, now) for row in running}
    last = max(ends.values(), default=now)
    total = idle_s(connection, now=now) + sum(_end(row, now) - number_in(row["started_at"], now) for row in running)
    total += sum(seconds_in(seconds) for (seconds,) in connection.execute("SELECT seconds FROM trials WHERE outcome IS NOT NULL"))
    holders = _holders(connection, now)
    total += sum(max(0.0, last - ends.get(each, now)) for each in holders)
    return HeldTime(committed_s=total, until_s=last - now, holders=len(holders), is_holder=tuner in holders)


def idle_s(connection: sqlite3.Connection, *, now: float) -> float:
    """Return the seconds between trials in which the sessions held devices.

    A session that holds devices counts until now, but no longer than `LEASE_S` after its last sign of life.
    """
    total = 0.0
    for counted_s, idle_from, in_trial in connection.execute(f"SELECT idle_s, idle_from, {_IN_TRIAL} FROM sessions"):
        total += seconds_in(counted_s)
        if not in_trial:
            total += seconds_in(min(LEASE_S, max(0.0, now - number_in(idle_from, now))))
    return total


def _holders(connection: sqlite3.Connection, now: float) -> set[str]:
    """Return the tuners that hold devices: those with a trial, and those that gave a sign of life within `LEASE_S`."""
    rows = connection.execute(f"SELECT tuner, idle_from, {_IN_TRIAL} FROM sessions WHERE idle_from IS NOT NULL")
    return {tuner for tuner, idle_from, in_trial in rows if in_trial or now - number_in(idle_from) <= LEASE_S}


def _end(row: Mapping[str, Any], now: float) -> float:
    """Return the time at which a trial that runs has ended at the latest; now if it has no grant, or outlasts it."""
    granted_s = row["granted_s"]
    return max(now, number_in(row["started_at"], now) + (seconds_in(granted_s) if granted_s is not None else 0.0))


def unrecorded_s(row: Mapping[str, Any], *, now: float) -> float:
    """Return the seconds of a trial whose end nobody recorded: until its lease ended, and at most its grant.

    A trial that outlasted its grant counts until the last renewal of its lease, which its tuner recorded.
    """
    started, until, granted_s = number_in(row["started_at"]), number_in(row["lease_until"]), row["granted_s"]
    seconds = min(now, until) - started
    if isinstance(granted_s, int | float):
        seconds = max(min(seconds, granted_s), until - LEASE_S - started)
    return seconds_in(max(0.0, seconds))


def seconds_in(value: Any) -> float:
    """Return a stored duration; 0 if it is missing or damaged."""
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0.0


def number_in(value: Any, otherwise: float = -math.inf) -> float:
    """Return a stored time, or `otherwise` if it is no number."""
    return float(value) if isinstance(value, int | float) else otherwise
