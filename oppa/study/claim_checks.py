"""Count the trials of a study that a claim of another one depends on."""

import sqlite3

from oppa.problem.configuration import Configuration


def search_trials(connection: sqlite3.Connection, configuration: Configuration | None = None) -> int:
    """Return the number of search trials that run or were not interrupted, of one configuration or of all."""
    query, values = "SELECT COUNT(*) FROM trials WHERE purpose = 'search' AND outcome IS NOT 'interrupted'", tuple[str | int, ...]()
    if configuration is not None:
        same = "configuration_id = ? AND json_extract(configuration, '$.global_batch') = ?"  # ids do not name the batch
        query, values = f"{query} AND {same}", (configuration.id, configuration.global_batch)
    return int(connection.execute(query, values).fetchone()[0])


def claimed_since(connection: sqlite3.Connection, trial: int, purpose: str, pairing: str | None) -> bool:
    """Return whether a trial of a purpose and pairing was claimed after the trial of this number."""
    query = "SELECT 1 FROM trials WHERE id > ? AND purpose = ? AND pairing IS ? LIMIT 1"
    return connection.execute(query, (trial, purpose, pairing)).fetchone() is not None
