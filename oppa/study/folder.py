"""Implement a study: a folder with `study.db`, `trials/<id>/` and `best/`, which any number of tuners share through leases."""

import contextlib
import dataclasses
import itertools
import json
import logging
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from oppa.errors import LeaseLostError, StudyError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import claim_checks, database, held_time, recovery
from oppa.study.records import LEASE_S, MEASURED, SEARCH, VERIFICATION, HeldTime, Lease, Prediction, TimeBudget, Trial
from oppa.study.rows import COLUMNS, read_json, read_lease, read_trial
from oppa.study.stored_problem import difference, limits_meta, problem_of, sha256
from oppa.study.study_file import StudyFile
from oppa.trials.processes import host_of_processes, this_process
from oppa.trials.trial import TrialResult

SIGN_OF_LIFE_S = 10.0
"""Seconds after which a tuner that holds devices between trials records that it still does."""
DAMAGED = "damaged"
"""Purpose of a trial whose row is damaged: it is set apart, and counts for nothing."""

Clock = Callable[[], float]

_OPENED = itertools.count()
"""Counter of the studies that this process opens, as each of its tuners has a name of its own."""

_log = logging.getLogger(__name__)


class Study:
    """Reads and writes one study, as used by one tuner. `clock` returns wall-clock time, since leases are compared across processes."""

    def __init__(self, folder: str | Path, *, clock: Clock = time.time, host: str = "") -> None:
        self.folder = Path(folder)
        self._clock = clock
        self._host = host or socket.gethostname()
        self._tuner = f"{host or host_of_processes()}/{this_process()}:{next(_OPENED)}"
        self._idle_from: float | None = None
        self.hosts: Callable[[], Sequence[str]] = tuple
        """Returns the names of the hosts on which this tuner runs trials at present; each of its trials records them at its end."""
        self.queued_s: Callable[[], float] = float
        """Returns the seconds for which this tuner has waited for devices that it did not hold; they are no part of its trials."""
        self._queued_s = 0.0
        self._file = StudyFile(self.folder, host=self._host)

    @classmethod
    def create(cls, folder: Path, problem: dict[str, Any], fingerprint: str, *, option: str = "--study", clock: Clock = time.time) -> Self:
        """Create a study for a problem (as JSON values), or open an existing one with the same fingerprint.

        Args:
            option: Option that names the folder, for messages.

        Raises:
            StudyError: the folder is the study of another problem, or cannot be used.
        """
        facts = {
            "uuid": str(uuid.uuid4()),
            "problem": problem,
            "problem_sha256": sha256(problem),
            "fingerprint": fingerprint,
            "host": socket.gethostname(),
            "created_at": clock(),
        }
        database.create(folder, {key: json.dumps(value) for key, value in facts.items()})
        study = cls(folder, clock=clock)
        try:
            study.require_problem(problem, fingerprint, option=option)
        except StudyError:
            study.close()
            raise
        return study

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def meta(self) -> dict[str, Any]:
        """Return the study's metadata: uuid, problem, fingerprint, host, creation time."""
        return self._file.meta

    @property
    def problem(self) -> Problem:
        """Return the problem, with the limits of the last session that stated others than the first.

        Raises:
            StudyError: what is stored is not a problem, or is not what was stored; older studies have no checksum.
        """
        return problem_of(self.meta, self.folder)

    def require_problem(self, problem: Mapping[str, Any], fingerprint: str, *, option: str = "--study") -> None:
        """Check that the study has this problem (as JSON values, with its fingerprint); raises StudyError, which names a difference."""
        if self.meta["fingerprint"] != fingerprint:
            found = difference(self.meta["problem"], problem)
            message = f"`{self.folder}` is the study of another problem" + (f": {found}" if found else "")
            raise StudyError(message, hint=f"name another folder with `{option}`")

    @property
    def uuid(self) -> str:
        """Return the id that every process of this study has in its environment."""
        return str(self.meta["uuid"])

    def open_session(self, facts: Mapping[str, str]) -> None:
        """Begin a session of this tuner, and store facts that explain its trials: command, versions, hardware."""
        now = self._clock()
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO sessions (tuner, started_at, seen_at, facts) VALUES (?, ?, ?, ?)",
                (self._tuner, now, now, json.dumps(dict(facts))),
            )

    def store_limits(self, limits: Limits) -> None:
        """Store the limits and prices of this session, if they differ from those that the study has."""
        if limits != self.problem.limits:
            with self.transaction() as connection:
                rows = [(key, json.dumps(value)) for key, value in limits_meta(limits).items()]
                connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
            self.meta.update(limits_meta(limits))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Count the time between trials as well, inside the context: the launcher holds devices for this tuner, whose search begins now."""
        self._idle_from = now = self._clock()
        with self.transaction() as connection:
            self._count_idle()
            connection.execute("UPDATE sessions SET started_at = ?, seen_at = ? WHERE tuner = ?", (now, now, self._tuner))
        try:
            yield
        finally:
            with contextlib.suppress(StudyError), self.transaction() as connection:
                self._count_idle()
                connection.execute("UPDATE sessions SET idle_from = NULL WHERE tuner = ?", (self._tuner,))
            self._idle_from = None

    @property
    def holds(self) -> bool:
        """Return whether the launcher holds devices for this tuner between trials."""
        return self._idle_from is not None

    def sessions(self) -> list[dict[str, str]]:
        """Return the facts of every session, oldest first; those of a damaged row are left out."""
        found = []
        for row in self._file.select("SELECT facts FROM sessions ORDER BY started_at"):
            with contextlib.suppress(StudyError):
                found.append(read_json(row, "facts"))
        return found

    def claim(
        self,
        configuration: Configuration,
        *,
        purpose: str = SEARCH,
        pairing: str | None = None,
        tried: int = 0,
        after: int | None = None,
        prediction: Prediction | None = None,
        limit: int | None = None,
        budget: TimeBudget | None = None,
    ) -> Lease | None:
        """Return a lease to run a trial; None if another tuner has claimed it, `limit` search trials were claimed, or the budget is spent.

        A search trial follows `tried` others of its configuration. If there are more, another tuner has claimed it. A trial with a
        `pairing` is a verification trial: one of the repeats that compare configurations.

        Args:
            after: Number of the last trial that the caller has seen, running or ended. If a trial of this purpose and pairing was claimed
                since, another tuner was faster. None: any number of tuners may run such trials.
        """
        purpose = purpose if pairing is None else VERIFICATION
        now = self._clock()
        with self.transaction() as connection:
            if purpose == SEARCH and claim_checks.search_trials(connection, configuration) != tried:
                return None
            if purpose == SEARCH and limit is not None and claim_checks.search_trials(connection) >= limit:
                return None
            if after is not None and claim_checks.claimed_since(connection, after, purpose, pairing):
                return None
            self._count_idle()
            granted_s = None if budget is None else budget.granted_s(self._held_time())
            if budget and granted_s is None:
                return None
            cursor = connection.execute(
                "INSERT INTO trials (configuration, configuration_id, purpose, pairing, tuner, token, lease_until,"
                " started_at, prediction, granted_s, hosts) VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
                (
                    json.dumps(configuration.to_dict()),
                    configuration.id,
                    purpose,
                    pairing,
                    self._tuner,
                    now + LEASE_S,
                    now,
                    json.dumps(dataclasses.asdict(prediction)) if prediction else None,
                    granted_s,
                    self._hosts(),
                ),
            )
            assert cursor.lastrowid is not None
            lease = Lease(
                trial=cursor.lastrowid, configuration=configuration, purpose=purpose, pairing=pairing, token=1, granted_s=granted_s
            )
            self._seen(lease)
            return lease

    def renew(self, lease: Lease, *, ending_s: float = 0.0) -> None:
        """Renew a lease, also for the seconds in which the processes end; raises LeaseLostError if another tuner has the trial."""
        lasts_s = max(LEASE_S, LEASE_S / 2 + ending_s)
        self._update(lease, {"lease_until": self._clock() + lasts_s})

    def finish(self, lease: Lease, result: TrialResult) -> None:
        """Record the outcome of a trial on disk; raises LeaseLostError if another tuner has taken the trial over."""
        estimate = result.estimate if result.outcome in MEASURED else None
        self._update(
            lease,
            {
                "outcome": result.outcome,
                "cause": result.cause,
                "rank": result.rank,
                "traceback": result.traceback,
                "step_times_s": json.dumps(result.step_times_s),
                "steps_per_s": estimate and estimate.steps_per_s,
                "variance": estimate and estimate.variance,
                "memory_bytes": result.memory_bytes,
                "seconds": result.seconds,
                "setup_s": result.setup_s,
                "hosts": self._hosts(),  # a requeued job may have run it on others than at its start
            },
        )

    def _hosts(self) -> str | None:
        return json.dumps(list(hosts)) if (hosts := self.hosts()) else None

    def interrupt(self, lease: Lease, cause: str) -> None:
        """Record that a trial was interrupted; it may run again."""
        self._update(lease, {"outcome": "interrupted", "cause": cause, "seconds": self._lasted_s(lease)})

    def record_lost(self, lease: Lease) -> None:
        """Record the seconds of a trial that was taken over, once its processes are gone; it held its devices until now."""
        seconds = self._lasted_s(lease)
        with self.transaction() as connection:
            connection.execute(
                "UPDATE trials SET seconds = MAX(COALESCE(seconds, 0), ?) WHERE id = ? AND outcome = 'interrupted'", (seconds, lease.trial)
            )
            self._count_idle(seconds)

    def recover(self) -> list[int]:
        """Mark the trials of dead tuners as interrupted, invalidate their leases, and return the ids of these trials."""
        now = self._clock()
        with self.transaction() as connection:
            gone = recovery.recover(connection, host=self._tuner.rpartition("/")[0], now=now)
            if self._idle_from is not None and now - self._idle_from >= SIGN_OF_LIFE_S:
                self._count_idle()
        return gone

    def trials(self) -> list[Trial]:
        """Return every trial that ended, oldest first; one whose row is damaged is set apart."""
        found = []
        for row in self._file.select(f"SELECT {COLUMNS} FROM trials WHERE outcome IS NOT NULL AND purpose IS NOT '{DAMAGED}' ORDER BY id"):
            try:
                found.append(read_trial(row))
            except StudyError as error:
                self._set_apart(row["id"], error.message)
        return found

    def damaged(self) -> dict[int, str]:
        """Return what is wrong with each row that was set apart, by the number of its trial."""
        found = {}
        for row in self._file.select(f"SELECT {COLUMNS} FROM trials WHERE purpose = '{DAMAGED}' ORDER BY id"):
            found[row["id"]] = "`purpose` was damaged"
            try:
                read_trial({**row, "purpose": SEARCH})
            except StudyError as error:
                found[row["id"]] = error.message
        return found

    def running(self) -> list[Lease]:
        """Return the leases of all trials that run now; one whose row is damaged is left to `trials`, which it reaches when it ends."""
        found = []
        for row in self._file.select("SELECT id, configuration, purpose, pairing, token FROM trials WHERE outcome IS NULL ORDER BY id"):
            with contextlib.suppress(StudyError):
                found.append(read_lease(row))
        return found

    def spent_s(self) -> float:
        """Return the seconds of wall-clock time in which at least one tuner searched."""
        total, end = 0.0, float("-inf")
        for row in self._file.select("SELECT started_at, seen_at FROM sessions ORDER BY started_at"):
            start, seen = held_time.number_in(row["started_at"]), held_time.number_in(row["seen_at"])
            total += max(0.0, seen - max(start, end))
            end = max(end, seen)
        return total

    def idle_s(self) -> float:
        """Return the seconds between trials in which tuners held devices, as in an allocation of Slurm."""
        with self._file.reading() as connection:
            return held_time.idle_s(connection, now=self._clock())

    def held_time(self) -> HeldTime:
        """Return the seconds in which tuners held devices, and those that are granted or reserved, as this tuner sees them."""
        with self._file.reading():
            return self._held_time()

    def committed_s(self) -> float:
        """Return the seconds in which tuners held devices, and those that are granted or reserved."""
        return self.held_time().committed_s

    def check(self) -> None:
        """Make sure that the study can be read by the next command; write it again if a trial has overwritten it.

        Raises:
            StudyError: nobody can read it any more.
        """
        self._file.check()

    def trial_folder(self, trial: Lease | Trial) -> Path:
        """Return the folder with the trial's files."""
        return self.folder / "trials" / trial.folder_name

    def _count_idle(self, trial_s: float = 0.0) -> None:
        """Add the seconds since the last trial to this session, if its launcher holds devices; `trial_s` of them belong to a trial."""
        if self._idle_from is not None:
            now = self._clock()
            idle_s = max(0.0, now - self._idle_from - trial_s)
            self._connection.execute("UPDATE sessions SET idle_s = idle_s + ?, idle_from = ? WHERE tuner = ?", (idle_s, now, self._tuner))
            self._idle_from = now

    def _held_time(self) -> HeldTime:
        return held_time.held_time(self._connection, tuner=self._tuner, now=self._clock())

    def _lasted_s(self, lease: Lease) -> float:
        """Return the seconds since a trial of this tuner started; this tuner's own clock is trusted, so that an overrun counts."""
        with self.transaction():
            self._leave_out_queue(lease)
        (row,) = self._file.select(f"SELECT started_at FROM trials WHERE id = {lease.trial:d}")
        return max(0.0, self._clock() - held_time.number_in(row["started_at"], self._clock()))

    def _update(self, lease: Lease, values: dict[str, Any]) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        with self.transaction() as connection:
            self._leave_out_queue(lease)
            cursor = connection.execute(
                f"UPDATE trials SET {columns} WHERE id = ? AND token = ? AND outcome IS NULL", (*values.values(), lease.trial, lease.token)
            )
            if cursor.rowcount != 1:
                raise LeaseLostError(f"trial {lease.trial} was taken over by another tuner", hint="the study continues without this trial")
            self._seen(lease)
            if "outcome" in values:
                self._count_idle(values["seconds"])

    def _leave_out_queue(self, lease: Lease) -> None:
        """Move a trial, its session and the time between trials by the seconds of the queue since the last call."""
        before, self._queued_s = self._queued_s, self.queued_s()
        queued_s, moved = self._queued_s - before, "started_at = started_at + ?1, seen_at = seen_at + ?1"
        self._connection.execute("UPDATE trials SET started_at = started_at + ? WHERE id = ?", (queued_s, lease.trial))
        self._connection.execute(f"UPDATE sessions SET {moved} WHERE tuner = ?2", (queued_s, self._tuner))
        if self._idle_from is not None:
            self._idle_from += queued_s

    def _seen(self, lease: Lease) -> None:
        """Record that this tuner searches now; verification does not count as search time."""
        if lease.purpose == SEARCH:
            self._connection.execute("UPDATE sessions SET seen_at = ? WHERE tuner = ?", (self._clock(), self._tuner))

    def _set_apart(self, trial: int | None, fault: str) -> None:
        """Leave a damaged trial out from now on; damage may have taken its number, too."""
        _log.warning("trial %s is damaged in `%s`, and is left out: %s", trial, self._file.path, fault)
        with self.transaction() as connection:
            connection.execute("UPDATE trials SET purpose = ? WHERE id IS ?", (DAMAGED, trial))

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._file.connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block in a transaction of the file: no other tuner changes the study meanwhile."""
        counted = self._idle_from, self._queued_s
        try:
            with self._file.transaction() as connection:
                yield connection
        except BaseException:
            self._idle_from, self._queued_s = counted  # the file was rolled back to it
            raise
