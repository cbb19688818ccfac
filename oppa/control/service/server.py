"""Run the control service: jobs report their steps over WebSocket and receive decisions.

    GET /             the live page, without data
    GET /healthz      health check
    GET /metrics      metrics for Prometheus; requires the watcher's token
    WS  /job/NAME     connection of a job; requires its own token
    WS  /watch        the live page's data; the first message is the watcher's token

Tokens are sent in the header `Authorization: Bearer TOKEN`, never in a URL. The service listens only on loopback; other hosts reach it
through an SSH tunnel. A foreign page may direct a browser on the same machine to the service, so Host and Origin are checked, too.

The service decides on a message at once, and acknowledges it when it is on disk. No connection waits for another. The service
reads more slowly from a job that sends too fast, and refuses damaged messages.
"""

import asyncio
import concurrent.futures
import contextlib
import http
import logging
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from oppa.control.controller import Controller
from oppa.control.service.job import ControlledJob
from oppa.control.service.journal import Journal
from oppa.control.service.live_feed import answer_watcher
from oppa.control.service.metrics import CONTENT_TYPE, exposition
from oppa.control.service.page import page, policy_of_page
from oppa.control.service.tokens import Tokens
from oppa.errors import ProtocolError
from oppa.launchers.network import LOOPBACK
from oppa.protocol.messages import MAX_BYTES, NAME, Ack, Changed, Hello, Refused, StepTaken, Welcome, from_job

CONNECTIONS = 4096
"""Maximum number of simultaneous connections; further ones get HTTP status 503."""
PER_S, BURST = 100.0, 1000
"""Messages read from a connection per second, and size of a burst that is read without delay."""
QUEUED = 256
"""Maximum number of messages of a connection that were read but not processed."""
WRONG = 20
"""Number of damaged messages after which a connection is closed."""
PATIENCE_S = 10.0
"""Seconds within which the first message must arrive."""
GATHERED_S = 0.002
"""Seconds in which messages are collected for one write to disk."""
_JOB = re.compile(f"/job/({NAME})")


_log = logging.getLogger(__name__)

Told = tuple[StepTaken | Changed, str]
"""A message and its JSON text."""


class Service:
    """Serves many jobs, each with a controller of its own.

    Args:
        folder: Folder of the service's secret and journal.
        control: Factory of the controller for a job's hello.
    """

    def __init__(self, folder: Path, control: Callable[[Hello], Controller]) -> None:
        self.folder, self.tokens = folder, Tokens.of(folder)
        self._control = control
        self._disk = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._journal = self._disk.submit(Journal, folder).result()
        self.jobs = {job.name: job for job in self._disk.submit(self._remembered).result()}
        self._speaking: dict[str, ServerConnection] = {}
        self._waiting: list[tuple[str, int, str]] = []
        self._written: asyncio.Future[None] | None = None
        """Future of the waiting messages, done when they are on disk; None if none wait."""
        self._writer: asyncio.Task[None] | None = None
        self.refused = 0
        """Number of damaged messages and of refused connections and requests."""
        self.taken = 0
        """Number of messages accepted since the service started."""

    @contextlib.asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator[int]:
        """Serve inside an `async with` block, and yield the port.

        Args:
            port: Port to listen on; 0 picks a free one.

        Raises:
            OSError: if the port is taken.
        """
        async with serve(
            self._speak,
            LOOPBACK,
            port,
            process_request=self._admit,
            max_size=MAX_BYTES,
            max_queue=16,
            compression=None,
            ping_interval=20,
            ping_timeout=20,
            server_header=None,
            logger=_quiet(),
        ) as server:
            yield _port(server)

    def close(self) -> None:
        """Close the journal."""
        self._disk.submit(self._journal.close).result()
        self._disk.shutdown()

    def _remembered(self) -> list[ControlledJob]:
        """Return the jobs, restored by replaying the journal."""
        found = []
        for name, hello in self._journal.jobs():
            first = from_job(hello)
            assert isinstance(first, Hello) and first.job == name
            job = ControlledJob(first, self._control)
            for text in self._journal.messages(name):
                message = from_job(text)
                assert not isinstance(message, Hello)
                _taken(job, message)
            found.append(job)
        return found

    # HTTP requests, before a connection becomes a WebSocket.

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the HTTP response to a request, or None to accept it as a WebSocket."""
        own = f"{LOOPBACK}:{connection.local_address[1]}", f"localhost:{connection.local_address[1]}"
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        if len(hosts) != 1 or hosts[0] not in own or any(origin not in [f"http://{host}" for host in own] for origin in origins):
            return self._refusal(http.HTTPStatus.FORBIDDEN, "this service accepts connections from this machine only")
        if len(connection.server.connections) > CONNECTIONS:
            return _answer(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
        if request.path == "/":
            return _answer(http.HTTPStatus.OK, page(), kind="text/html; charset=utf-8", **policy_of_page())
        if request.path == "/healthz":
            return _answer(http.HTTPStatus.OK, "ok\n")
        if request.path == "/metrics":
            if not self.tokens.is_of_watcher(_bearer(request)):
                return self._refusal(http.HTTPStatus.UNAUTHORIZED, "the watcher's token is required")
            metrics = exposition(self.jobs.values(), taken=self.taken, refused=self.refused)
            return _answer(http.HTTPStatus.OK, metrics, kind=CONTENT_TYPE)
        if match := _JOB.fullmatch(request.path):
            if origins or not self.tokens.is_of_job(_bearer(request), match[1]):
                return self._refusal(http.HTTPStatus.UNAUTHORIZED, f"the token of `{match[1]}` is required")
            return None
        return None if request.path == "/watch" else _answer(http.HTTPStatus.NOT_FOUND, "this page does not exist")

    def _refusal(self, status: http.HTTPStatus, text: str) -> Response:
        self.refused += 1
        return _answer(status, text)

    # Messages on a WebSocket.

    async def _speak(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            if match := _JOB.fullmatch(connection.request.path):
                await self._listen(connection, match[1])
            else:
                async with asyncio.timeout(PATIENCE_S):
                    token = await connection.recv()
                if not isinstance(token, str) or not self.tokens.is_of_watcher(token):
                    self.refused += 1
                    await connection.close(1008, "the watcher's token is required")
                    return
                await answer_watcher(connection, self.jobs)

    async def _listen(self, connection: ServerConnection, name: str) -> None:
        """Serve one job until its connection ends; a newer connection of the job replaces an older one."""
        if (older := self._speaking.get(name)) is not None:
            await older.close(1008, "a newer connection of the job replaces this one")
        self._speaking[name] = connection
        try:
            async with asyncio.timeout(PATIENCE_S):
                hello = from_job(await connection.recv())
            if not isinstance(hello, Hello) or hello.job != name:
                raise ProtocolError(f"the first message is not the hello of `{name}`")
            job = await self._known(hello)
            await connection.send(Welcome(number=job.number).to_json())
            await self._take_in(connection, job)
        except (ProtocolError, TimeoutError) as error:
            self.refused += 1
            reason = error.message if isinstance(error, ProtocolError) else f"no message within {PATIENCE_S:g} s"
            await connection.send(Refused(reason=reason[:2000]).to_json())
            await connection.close(1008)
        finally:
            if self._speaking.get(name) is connection:
                del self._speaking[name]

    async def _known(self, hello: Hello) -> ControlledJob:
        """Store a hello, and return its job, which is created if it is new."""
        await asyncio.get_running_loop().run_in_executor(self._disk, self._journal.begin, hello.job, hello.to_json())
        job = self.jobs.get(hello.job) or self.jobs.setdefault(hello.job, ControlledJob(hello, self._control))
        job.controller.total_samples = hello.total_samples
        await self._on_disk()
        return job

    async def _take_in(self, connection: ServerConnection, job: ControlledJob) -> None:
        """Read the messages of a job at a limited rate and process them in batches, until the connection ends."""
        read: asyncio.Queue[str | bytes | None] = asyncio.Queue(QUEUED)
        reader = asyncio.create_task(_read(connection, read))
        try:
            wrong = 0
            while wrong < WRONG and (first := await read.get()) is not None:
                texts = [first]
                while not read.empty() and (more := read.get_nowait()) is not None:
                    texts.append(more)
                wrong += await self._answer(connection, job, texts)
            if wrong >= WRONG:
                await connection.close(1008, "too many damaged messages")
        finally:
            reader.cancel()

    async def _answer(self, connection: ServerConnection, job: ControlledJob, texts: list[str | bytes]) -> int:
        """Process a batch of messages: send a decision if due, and acknowledge; return the number of damaged messages."""
        messages, damaged = _sorted_out(texts)
        self.refused += len(damaged)
        for message, text in messages:
            if message.number > job.number:
                self._waiting.append((job.name, message.number, text))
                self.taken += 1
            _taken(job, message)
        if decided := job.unheard():
            await connection.send(decided.to_json())
            job.heard(decided)
        if messages:
            ack = Ack(number=job.number)
            await self._on_disk()
            await connection.send(ack.to_json())
        for reason in damaged:
            await connection.send(Refused(reason=reason[:2000]).to_json())
        return len(damaged)

    async def _on_disk(self) -> None:
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

    async def _write(self) -> None:
        """Write the waiting messages, and those that arrive meanwhile, until none wait."""
        while self._written is not None:
            await asyncio.sleep(GATHERED_S)
            waiting, self._waiting, written, self._written = self._waiting, [], self._written, None
            try:
                await asyncio.get_running_loop().run_in_executor(self._disk, self._journal.add, waiting)
            except (sqlite3.Error, RuntimeError) as error:  # disk full, or service closing: waiting callers get the error
                self._waiting = waiting + self._waiting
                written.set_exception(error)
            else:
                written.set_result(None)
        self._writer = None


def _taken(job: ControlledJob, message: StepTaken | Changed) -> None:
    """Process a message of a job; log any exception, so that it stops neither the service nor other jobs."""
    try:
        job.take(message)
    except Exception:  # noqa: BLE001 - any error concerns one job only
        _log.exception("job `%s`: message %d could not be processed", job.name, message.number)


async def _read(connection: ServerConnection, read: "asyncio.Queue[str | bytes | None]") -> None:
    """Put the messages of a connection into a queue at a limited rate, and None at its end."""
    pace = _Pace()
    with contextlib.suppress(ConnectionClosed):
        async for text in connection:
            await pace.wait()
            await read.put(text)
    await read.put(None)


class _Pace:
    """Rate limiter: passes BURST messages at once, then PER_S a second (token bucket)."""

    def __init__(self) -> None:
        self._left, self._seen_s = float(BURST), time.monotonic()

    async def wait(self) -> None:
        """Wait until one more message may be read."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._seen_s) * PER_S) - 1
        self._seen_s = now
        if self._left < 0:
            await asyncio.sleep(-self._left / PER_S)


def _sorted_out(texts: list[str | bytes]) -> tuple[list[Told], list[str]]:
    """Separate texts into valid messages, and the errors of the damaged ones."""
    messages, damaged = list[Told](), list[str]()
    for text in texts:
        try:
            message = from_job(text)
        except ProtocolError as error:
            damaged.append(error.message)
            continue
        if isinstance(message, Hello):
            damaged.append("a second hello")
        else:
            messages.append((message, str(text)))
    return messages, damaged


def _bearer(request: Request) -> str:
    """Return the bearer token of a request; empty without a valid one."""
    words = request.headers.get_all("Authorization")
    return words[0].removeprefix("Bearer ") if len(words) == 1 and words[0].startswith("Bearer ") and words[0].isascii() else ""


def _answer(status: http.HTTPStatus, text: str, *, kind: str = "text/plain; charset=utf-8", **headers: str) -> Response:
    body = text.encode()
    fixed = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", "X-Content-Type-Options": "nosniff"}
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Response(status.value, status.phrase, Headers({**fixed, "Cache-Control": "no-store", **named}), body)


def _port(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])


def _quiet() -> logging.Logger:
    """Return a logger that hides the websockets library's messages below ERROR, such as broken connections."""
    logger = logging.getLogger("oppa.control.connections")
    logger.setLevel(logging.ERROR)
    return logger
