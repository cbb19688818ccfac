"""Sums the seconds for which tuners have held devices, as the rows of a study's file state them. A damaged value counts as nothing."""

import math
import sqlite3
from collections.abc import Mapping
from typing import Any

from oppa.study.records import LEASE_S


def committed_s(connection: sqlite3.Connection, *, now: float) -> float:
    """Return the seconds of trials that ended, of sessions between trials, and of grants to trials that run.

    A trial that runs without a grant counts from its start until `now`, in seconds since 1970.
    """
    total = idle_s(connection)
    for outcome, seconds, granted_s, started_at in connection.execute("SELECT outcome, seconds, granted_s, started_at FROM trials"):
        if outcome is not None:
            total += seconds_in(seconds)
        else:
            total += seconds_in(now - number_in(started_at) if granted_s is None else granted_s)
    return total


def idle_s(connection: sqlite3.Connection) -> float:
    """Return the seconds between trials in which the sessions held devices."""
    return sum(seconds_in(value) for (value,) in connection.execute("SELECT idle_s FROM sessions"))


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
