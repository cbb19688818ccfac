"""Hostile studies: a database whose rows or facts another program has changed. Damaged rows are set apart, and the rest is used."""

import contextlib
import functools
import json
import logging
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.faults.case import Case
from experiments.faults.inputs import mutations
from experiments.faults.inputs.job_files import PROGRAM

if TYPE_CHECKING:
    from oppa.trials.trial import TrialResult

SAMPLE = 3_000
"""Number of cases that a seed yields, of several thousand."""
TRIALS = 3
Change = tuple[str, str, Any]
"""A table, a column or key, and its other value."""


def cases(seed: int) -> Iterator[Case]:
    """Yield a sample of all changes, in an order that the seed decides."""
    made = [*_rows(), *_facts()]
    for number, (table, name, value) in enumerate(random.Random(seed).sample(made, min(SAMPLE, len(made)))):
        body = json.dumps([table, name, value]).encode()
        yield Case(f"study, {table}.{name} {number}", {"change.json": body})


def read(case: Case, folder: Path) -> None:
    """Change the database, and read the study as `oppa show` and a tuner do; raises StudyError if it cannot be used."""
    from experiments.faults.inputs.use import use
    from oppa.study import Study

    logging.getLogger("oppa.study.folder").setLevel(logging.ERROR)  # it names each damaged row
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "s"
        copy.mkdir()
        (copy / "study.db").write_bytes(_study())
        table, column, value = json.loads(case.files["change.json"])
        with contextlib.closing(sqlite3.connect(copy / "study.db")) as connection, connection:
            if table == "meta":
                connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, column))
            else:
                connection.execute(f"UPDATE trials SET {column} = ? WHERE id = 1", (value,))
        with Study(copy) as study:
            trials, damaged = study.trials(), study.damaged()
            assert len(trials) + len(damaged) + len(study.running()) == TRIALS, "a trial is lost"
            study.sessions(), study.spent_s(), study.recover()
            for trial in trials:
                trial.cause.encode()
                assert "/" not in trial.folder_name and len(trial.folder_name) < 255
            use(study.problem, copy)


def completed() -> "TrialResult":
    """Return the result of a trial of four steps that ran to its end."""
    from oppa.trials.throughput import ThroughputEstimate
    from oppa.trials.trial import TrialResult

    return TrialResult(
        outcome="completed",
        step_times_s=(1.0, 0.5, 0.5, 0.5),
        estimate=ThroughputEstimate(steps_per_s=2.0, variance=0.01, kept=3),
        memory_bytes=100,
        seconds=3.0,
        setup_s=0.5,
    )


@functools.cache
def _study() -> bytes:
    """Return the database of a study of a job with knobs and an objective."""
    from oppa import api
    from oppa.study import Prediction, Study

    result = completed()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.toml").write_bytes(mutations.toml_file(PROGRAM))
        (folder / "config.json").write_text("{}")
        problem = api.load_job(folder / "job.toml")
        candidates = problem.candidates()
        with Study.create(folder / "s", problem.to_dict(), problem.fingerprint) as study:
            study.open_session({"command": "oppa tune"})
            for number in range(TRIALS):
                lease = study.claim(candidates.configuration(number), prediction=Prediction(steps_per_s=1.5, log_stddev=0.2))
                assert lease is not None
                study.finish(lease, result)
        return (folder / "s" / "study.db").read_bytes()


@contextlib.contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    """Open a copy of the study's database."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "study.db").write_bytes(_study())
        with contextlib.closing(sqlite3.connect(Path(name) / "study.db")) as connection:
            yield connection


def _rows() -> Iterator[Change]:
    """Yield other values of the columns of a trial, and of the values inside them."""
    with _opened() as connection:
        connection.row_factory = sqlite3.Row
        row = dict(connection.execute("SELECT * FROM trials WHERE id = 1").fetchone())
    for column, stored in row.items():
        if column != "id":
            yield from (("trials", column, value) for value in mutations.values() if _fits(value))
        if isinstance(stored, str) and stored.startswith(("[", "{")):
            values = json.loads(stored)
            if isinstance(values, dict):
                yield from (
                    ("trials", column, json.dumps(changed)) for _, changed in mutations.mutated(values, (None, float("nan"), [0] * 3))
                )
            yield from (("trials", column, text) for _, text in mutations.deep("[", "]"))


def _facts() -> Iterator[Change]:
    """Yield other values of the study's facts, and of the values inside the problem."""
    with _opened() as connection:
        facts = dict(connection.execute("SELECT key, value FROM meta"))
    for key, stored in facts.items():
        yield from (("meta", key, json.dumps(value)) for value in (*mutations.values(), None, float("nan")))
        yield from (("meta", key, value) for value in mutations.values() if _fits(value))
        if key == "problem":
            yield from (("meta", key, json.dumps(changed)) for _, changed in mutations.mutated(json.loads(stored), (None,)))


def _fits(value: Any) -> bool:
    """Return whether SQLite stores a value."""
    return isinstance(value, str | float) or (isinstance(value, int) and -(2**63) <= value < 2**63)
