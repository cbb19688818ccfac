"""A study of every earlier version is read, and one of a later version is refused."""

import contextlib
import json
import re
import sqlite3
import time

import pytest

from oppa.errors import StudyError
from oppa.problem.configuration import Configuration
from oppa.study import Prediction, Study, database
from oppa.study.migrations import SCHEMA_VERSION
from oppa.trials.processes import this_process

A = Configuration(dp=2, global_batch=8, micro_batch=1)
B = Configuration(dp=1, pp=2, global_batch=8, micro_batch=2)
META = {"uuid": "u", "problem": {"name": "a problem"}, "fingerprint": "fingerprint", "host": "here", "created_at": 1.0}

FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trials (
    id INTEGER PRIMARY KEY, configuration TEXT NOT NULL, configuration_id TEXT NOT NULL, purpose TEXT NOT NULL,
    tuner TEXT NOT NULL, token INTEGER NOT NULL, lease_until REAL NOT NULL, started_at REAL NOT NULL,
    predicted_steps_per_s REAL, predicted_log_stddev REAL,
    outcome TEXT, cause TEXT, rank INTEGER, traceback TEXT, step_times_s TEXT,
    steps_per_s REAL, variance REAL, memory_bytes INTEGER, seconds REAL, setup_s REAL
);
CREATE UNIQUE INDEX one_search_trial ON trials (configuration_id) WHERE purpose = 'search' AND outcome IS NOT 'interrupted';
CREATE TABLE sittings (tuner TEXT PRIMARY KEY, started_at REAL NOT NULL, seen_at REAL NOT NULL) WITHOUT ROWID;
"""
PAIRED = FIRST.replace("purpose TEXT NOT NULL,", "purpose TEXT NOT NULL, pairing TEXT,").replace(
    "seen_at REAL NOT NULL)", "seen_at REAL NOT NULL, facts TEXT NOT NULL)"
)
SECOND = PAIRED.replace("predicted_steps_per_s REAL, predicted_log_stddev REAL", "prediction TEXT")
THIRD = re.sub(r"CREATE UNIQUE INDEX.*", "CREATE INDEX trials_of_a_configuration ON trials (configuration_id);", SECOND)
FOURTH = THIRD.replace("CREATE TABLE sittings", "CREATE TABLE sessions")
FIFTH = FOURTH.replace("setup_s REAL", "setup_s REAL, granted_s REAL").replace(
    "facts TEXT NOT NULL)", "facts TEXT NOT NULL, idle_s REAL NOT NULL DEFAULT 0)"
)
SIXTH = FIFTH.replace("idle_s REAL NOT NULL DEFAULT 0)", "idle_s REAL NOT NULL DEFAULT 0, idle_from REAL)")
EARLIER = {
    "1, before pairs": (1, FIRST),
    "1": (1, PAIRED),
    "2": (2, SECOND),
    "3": (3, THIRD),
    "4": (4, FOURTH),
    "5": (5, FIFTH),
    "6": (6, SIXTH),
}
"""Each earlier version, as its oppa created it."""


def insert(connection, table: str, **values) -> None:
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", [*values.values()])


@pytest.fixture(params=EARLIER.values(), ids=EARLIER)
def earlier(request, tmp_path):
    """The folder of a study of an earlier version: two trials that ended, the first one predicted, and a session of ten seconds."""
    version, tables = request.param
    with contextlib.closing(sqlite3.connect(tmp_path / database.FILE)) as connection, connection:
        connection.executescript(tables)
        for key, value in META.items():
            insert(connection, "meta", key=key, value=json.dumps(value))
        for configuration in (A, B):
            given = {"configuration": json.dumps(configuration.to_dict()), "configuration_id": configuration.id, "purpose": "search"}
            tuner = {"tuner": "here/1:1", "token": 1, "lease_until": 70.0, "started_at": 10.0}
            found = {"outcome": "completed", "step_times_s": "[0.5, 0.5]", "steps_per_s": 2.0, "variance": 0.01, "memory_bytes": 100}
            insert(connection, "trials", **given, **tuner, **found)
        if version == 1:
            connection.execute("UPDATE trials SET predicted_steps_per_s = ?, predicted_log_stddev = 0.1 WHERE id = 1", (1 / 3,))
        else:
            connection.execute("UPDATE trials SET prediction = ? WHERE id = 1", (json.dumps({"steps_per_s": 1 / 3, "log_stddev": 0.1}),))
        insert(
            connection,
            "sessions" if version >= 4 else "sittings",
            tuner="here/1:1",
            started_at=10.0,
            seen_at=20.0,
            **({} if tables is FIRST else {"facts": "{}"}),
        )
        connection.execute(f"PRAGMA user_version={version}")
    return tmp_path


def schema(folder) -> dict[str, object]:
    """Names, types and constraints of all columns by table, and the indices."""
    with contextlib.closing(sqlite3.connect(folder / database.FILE)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: {column[1:] for column in connection.execute(f"PRAGMA table_info({name})")} for name in tables}
        indices = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
        return {**columns, "indices": indices, "version": connection.execute("PRAGMA user_version").fetchone()}


def test_what_an_earlier_version_acknowledged_is_there(earlier) -> None:
    with Study(earlier) as study:
        first, second = study.trials()
        assert (first.configuration, second.configuration, first.steps_per_s, first.memory_bytes) == (A, B, 2.0, 100)
        assert first.prediction == Prediction(steps_per_s=1 / 3, log_stddev=0.1) and second.prediction is None
        assert (first.purpose, first.pairing, first.step_times_s) == ("search", None, (0.5, 0.5))
        assert study.spent_s() == 10.0 and study.sessions() == [{}]
        assert study.idle_s() == 0.0 and study.committed_s() == sum(trial.seconds for trial in study.trials())


def test_a_migrated_file_is_like_a_new_one(earlier, tmp_path_factory) -> None:
    Study(earlier).close()
    new = tmp_path_factory.mktemp("new")
    Study.create(new, {}, "f").close()
    assert schema(earlier) == schema(new)


def test_a_migrated_study_goes_on(earlier, completed) -> None:
    with Study.create(earlier, META["problem"], META["fingerprint"]) as study:
        study.open_session({"command": "oppa tune"})
        study.finish(study.claim(A, tried=1), completed)
        study.finish(study.claim(A, pairing="A|B"), completed)
    with Study(earlier) as again:
        assert [trial.purpose for trial in again.trials()] == ["search", "search", "search", "verification"]


def test_a_migration_that_fails_changes_nothing(earlier) -> None:
    with contextlib.closing(sqlite3.connect(earlier / database.FILE)) as connection, connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        table, column = ("trials", "hosts") if version >= 5 else ("trials", "granted_s")
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT")  # one of the last migrations cannot take place
    before = schema(earlier)
    with pytest.raises(StudyError, match="duplicate column"):
        Study(earlier)
    assert schema(earlier) == before


def test_a_study_is_not_migrated_under_a_tuner_at_work(earlier) -> None:
    with contextlib.closing(sqlite3.connect(earlier / database.FILE)) as connection, connection:
        connection.execute("UPDATE trials SET outcome = NULL, lease_until = ? WHERE id = 2", (time.time() + 60,))
    before = schema(earlier)
    with pytest.raises(StudyError, match=f"schema version {before['version'][0]}, and a tuner of an older oppa uses it") as caught:
        Study(earlier)
    assert "a minute after" in caught.value.hint and schema(earlier) == before


def test_what_a_dead_tuner_of_an_earlier_version_left_is_interrupted(earlier) -> None:
    with contextlib.closing(sqlite3.connect(earlier / database.FILE)) as connection, connection:
        connection.execute("UPDATE trials SET outcome = NULL, tuner = ? WHERE id = 2", (f"here/{this_process()}",))
    with Study(earlier, host="here") as study:
        assert study.recover() == [2]
        assert [trial.outcome for trial in study.trials()] == ["completed", "interrupted"]


def test_a_study_of_a_later_version_is_refused(study) -> None:
    study._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    study.close()
    message = f"has schema version {SCHEMA_VERSION + 1}, and this oppa reads versions up to {SCHEMA_VERSION}"
    with pytest.raises(StudyError, match=message) as caught:
        Study(study.folder)
    assert "upgrade oppa" in caught.value.hint
