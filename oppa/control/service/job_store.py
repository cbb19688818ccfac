"""Keep the jobs of a service on disk: restore them at the start, store their messages in groups, and take snapshots.

A start replays at most UNSAVED messages in total, or LEAST messages of each job if that is more.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import sqlite3
from pathlib import Path

from oppa.control.service.burst_log import BurstLog
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.job import ControlledJob
from oppa.control.service.journal import FILE, Journal, damaged
from oppa.control.service.snapshot import Snapshot
from oppa.errors import ProtocolError
from oppa.plain_text import plain_text
from oppa.protocol.messages import Changed, Hello, StepTaken, from_job

GATHERED_S = 0.002
"""Seconds in which messages are collected for one write to disk."""
UNSAVED, LEAST = 2000, 100
"""Number of messages, of all jobs and of one job, after which a snapshot is due."""
LARGEST = 8 << 20
"""Maximum number of characters of a snapshot; a larger state is replayed from its messages."""

_log = logging.getLogger(__name__)


class JobStore:
    """Keeps the jobs of a service, and their journal.

    Args:
        folder: Folder of the journal.
        control: Factory of the controller for a job's hello.
        bursts: Log of messages that cannot be processed.

    Raises:
        EnvironmentLackingError, InputError: those of `Journal`.
    """

    def __init__(self, folder: Path, control: ControllerFactory, bursts: BurstLog) -> None:
        self._control, self._bursts = control, bursts
        self._disk = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._journal = self._disk.submit(Journal, folder).result()
        self._waiting: list[tuple[str, int, str]] = []
        self._snapshots: dict[str, Snapshot] = {}
        self._written: asyncio.Future[None] | None = None
        """Future of the waiting messages, done when they are on disk; None if none wait."""
        self._writer: asyncio.Task[None] | None = None
        self.taken = 0
        """Number of messages accepted since the service started."""
        try:
            self.jobs = self._disk.submit(self._restored).result()
        except sqlite3.DatabaseError as error:
            self._disk.submit(self._journal.close).result()
            raise damaged(folder / FILE, error) from None

    def close(self) -> None:
        """Write the remaining messages and a snapshot of each job, and close the journal."""
        snapshots = [each for job in self.jobs.values() if (each := self._snapshot(job))]
        with contextlib.suppress(sqlite3.Error):  # these messages were not acknowledged
            self._disk.submit(self._store, self._waiting, snapshots).result()
        self._disk.submit(self._journal.close).result()
        self._disk.shutdown()

    async def begin(self, hello: Hello, run: str = "") -> tuple[ControlledJob, int]:
        """Store a hello; return its job and the number of its last message on disk.

        The job is created if it is new, or if the name was that of another run. Message numbers go on.

        Args:
            hello: The first message of a connection.
            run: UUID of the run; empty if unknown, which continues the job of any run.
        """
        job = self.jobs.get(hello.job)
        if job is None or (run and job.run and run != job.run):
            job = self.jobs[hello.job] = ControlledJob(hello, self._control, run=run, begun=job.number if job else 0)
        job.begin(hello, run)
        store = functools.partial(self._journal.begin, hello.job, hello.to_json(), run=job.run, begun=job.begun)
        await asyncio.get_running_loop().run_in_executor(self._disk, store)
        number = job.number  # an older connection may still add messages that wait for the disk
        await self.on_disk()
        return job, number

    def take(self, job: ControlledJob, message: StepTaken | Changed, text: str) -> None:
        """Process a message of a job, and queue its JSON text for the disk unless its number was accepted before.

        Late messages of a run whose name another one has taken over are ignored.
        """
        if self.jobs.get(job.name) is not job:
            return
        if message.number > job.number:
            self._waiting.append((job.name, message.number, text))
            self.taken += 1
        self._process(job, message)

    async def on_disk(self) -> None:
        """Wait until all accepted messages are on disk; messages that arrive together share one write.

        Raises:
            sqlite3.Error, RuntimeError: if they cannot be written; they stay queued for the next attempt.
        """
        if not self._waiting and self._writer is None:
            return
        written = self._written = self._written or asyncio.get_running_loop().create_future()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(written)

    def save(self, job: ControlledJob) -> None:
        """Queue a snapshot of a job for the disk, after its messages, if one is due."""
        if job.unsaved >= max(LEAST, UNSAVED // len(self.jobs)) and (snapshot := self._snapshot(job)):
            self._snapshots[job.name] = snapshot

    async def _write(self) -> None:
        """Write the waiting messages, and those that arrive meanwhile, until none wait."""
        while self._written is not None:
            await asyncio.sleep(GATHERED_S)
            waiting, self._waiting, written, self._written = self._waiting, [], self._written, None
            snapshots, self._snapshots = list(self._snapshots.values()), {}
            try:
                await asyncio.get_running_loop().run_in_executor(self._disk, self._store, waiting, snapshots)
            except (sqlite3.Error, RuntimeError) as error:  # disk full, or service closing: waiting callers get the error
                self._waiting = waiting + self._waiting
                written.set_exception(error)
            else:
                written.set_result(None)
        self._writer = None

    def _store(self, messages: list[tuple[str, int, str]], snapshots: list[Snapshot]) -> None:
        """Write messages, then the snapshots that include them; runs in the disk's thread."""
        self._journal.add(messages)
        self._keep(snapshots)

    def _keep(self, snapshots: list[Snapshot]) -> None:
        """Write snapshots; a failure costs time at the next start, and no message."""
        try:
            if snapshots:
                self._journal.keep(snapshots)
        except sqlite3.Error as error:
            self._bursts.warning("snapshot", f"a snapshot cannot be stored: {error}")

    def _snapshot(self, job: ControlledJob) -> Snapshot | None:
        """Return a snapshot of a job; None if it has no new message, its policy has no name, or its state is too large."""
        if not self._control.basis or not job.unsaved:
            return None
        job.unsaved = 0
        snapshot = Snapshot.of(job, self._control.basis)
        if len(snapshot.state) <= LARGEST:
            return snapshot
        self._bursts.warning("large", f"the state of job `{job.name}` is too large for a snapshot: a start replays all its messages")
        return None

    def _restored(self) -> dict[str, ControlledJob]:
        """Return the jobs in the journal, with new snapshots of those that had to be replayed; runs in the disk's thread."""
        found = {}
        for name, text in self._journal.jobs():
            hello = _hello(name, text)
            found[name] = job = self._from_snapshot(hello) or self._fresh(hello)
            for message_text in self._journal.messages(name, after=job.number):
                self._replay(job, message_text)
            _log.info("job `%s`: %d messages replayed", name, job.unsaved)
            if job.unsaved >= LEAST and (snapshot := self._snapshot(job)):
                self._keep([snapshot])
        return found

    def _fresh(self, hello: Hello) -> ControlledJob:
        """Return a job that has taken no message of its run yet."""
        run, begun = self._journal.run(hello.job)
        return ControlledJob(hello, self._control, run=run, begun=begun)

    def _from_snapshot(self, hello: Hello) -> ControlledJob | None:
        """Return a job as its snapshot has it; None without a valid snapshot of its run."""
        try:
            if (stored := self._journal.snapshot(hello.job)) is None:
                return None
            job = self._fresh(hello)
            if stored.number <= job.begun:
                return None
            if (state := stored.verified(self._control.basis)) is not None:
                job.restore(state)
                return job
        except Exception as error:  # noqa: BLE001 - a snapshot is a cache, so any error means a full replay
            _log.info("job `%s`: its snapshot cannot be read: %r", hello.job, error)
        _log.info("job `%s`: its policy, table or oppa has changed since its snapshot, so all of its steps are taken in again", hello.job)
        return None

    def _replay(self, job: ControlledJob, text: str) -> None:
        """Process a message from the journal; log one that is damaged, because the other messages still count."""
        try:
            message = from_job(text)
        except ProtocolError as error:
            self._bursts.warning(f"journal of {job.name}", f"job `{job.name}`: a message in the journal is damaged: {error.message}")
            return
        assert not isinstance(message, Hello)
        self._process(job, message)

    def _process(self, job: ControlledJob, message: StepTaken | Changed) -> None:
        """Process a message of a job; log any exception, so that it stops neither the service nor other jobs."""
        try:
            job.take(message)
        except Exception as error:  # noqa: BLE001 - any error concerns one job only
            text = f"job `{job.name}`: message {message.number} could not be processed"
            self._bursts.warning(f"message of {job.name}", text, error=error)


def _hello(job: str, text: str) -> Hello:
    """Return the stored hello of a job; raise DatabaseError if it is damaged."""
    try:
        hello = from_job(text)
    except ProtocolError as error:
        raise sqlite3.DatabaseError(f"the hello of `{plain_text(job)}`: {error.message}") from None
    if not isinstance(hello, Hello) or hello.job != job:
        raise sqlite3.DatabaseError(f"the hello of `{plain_text(job)}` is another message")
    return hello
