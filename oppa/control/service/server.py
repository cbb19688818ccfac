"""Run the control service: jobs report their steps over WebSocket and receive decisions.

    GET /             the live page, without data
    GET /healthz      health check
    GET /metrics      metrics for Prometheus; requires the watcher's token
    WS  /job/NAME     connection of a job; requires its own token
    WS  /job/NAME/hold    connection of a run that holds the name of a job; requires the same token
    WS  /watch        the live page's data; the first message is the watcher's token

Tokens are sent in the header `Authorization: Bearer TOKEN`, never in a URL. The service listens only on loopback; other hosts reach it
through an SSH tunnel. A foreign page may direct a browser on the same machine to the service, so Host and Origin are checked, too.

While a run holds a name, or is connected under it, the service refuses other runs of that name (409). They would mix their steps.

The service decides on a message at once, and acknowledges it when it is on disk. No connection waits for another. The service
reads more slowly from a job that sends too fast, refuses damaged messages, and closes a connection that does not read its answers.
"""

import asyncio
import contextlib
import errno
import functools
import http
import logging
import socket
import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from oppa.atomic_write import write_atomically
from oppa.control.service.address import TAKEN, in_use
from oppa.control.service.burst_log import BurstLog
from oppa.control.service.connections import ACCEPTED, BoundedConnection, ConnectionLimit
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.intake import close, next_batch, reading, send, sorted_out
from oppa.control.service.job import ControlledJob
from oppa.control.service.job_store import JobStore
from oppa.control.service.live_feed import answer_watcher
from oppa.control.service.metrics import CONTENT_TYPE, exposition
from oppa.control.service.page import LIVE_PAGE, page, policy_of_page
from oppa.control.service.requests import HOLD, JOB, WATCH, answer, is_from_here, may_speak, may_watch, run_of
from oppa.control.service.tokens import Tokens
from oppa.errors import ProtocolError
from oppa.launchers.network import LOOPBACK
from oppa.protocol.messages import MAX_BYTES, Ack, Hello, Refused, Welcome, from_job

WRONG = 20
"""Number of damaged messages after which a connection is closed."""
PATIENCE_S = 10.0
_LATE = f"no message within {PATIENCE_S:g} s"
"""Seconds within which a request, and the first message after it, must arrive."""
CLOSING_S = 2.0
"""Seconds for a closing handshake."""
QUEUE = 1024
"""Connections that the kernel keeps until the service accepts them."""
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Service:
    """Serves many jobs, each with a controller of its own.

    Args:
        folder: Folder of the service's secret and journal.
        control: Factory of the controller for a job's hello.
        titles: What the live page calls a job, by name; a job that lacks one is called by its name.
    """

    def __init__(self, folder: Path, control: ControllerFactory, *, titles: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder, self.tokens, self._titles = folder, Tokens.of(folder), titles
        self._bursts = BurstLog()
        self._limit = ConnectionLimit(self._bursts)
        self._store = JobStore(folder, control, self._bursts)
        self._speaking: dict[str, ServerConnection] = {}
        self._holding: dict[str, ServerConnection] = {}
        self._closing = set[asyncio.Task[None]]()
        self.refused = 0
        """Number of damaged messages and of refused connections and requests."""

    @property
    def jobs(self) -> dict[str, ControlledJob]:
        """Return the jobs that have connected so far, by name."""
        return self._store.jobs

    @property
    def taken(self) -> int:
        """Return the number of messages accepted since the service started."""
        return self._store.taken

    def live_page(self, port: int) -> str:
        """Return the address of the live page with the watcher's token, which belongs on no log."""
        return f"http://{LOOPBACK}:{port}/#token={self.tokens.of_watcher()}"

    @contextlib.asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator[int]:
        """Serve inside an `async with` block, and yield the port.

        Args:
            port: Port to listen on; 0 picks a free one.

        Raises:
            OSError: if the port is taken.
        """
        asyncio.get_running_loop().set_exception_handler(self._failed)
        listener = socket.create_server((LOOPBACK, port))
        async with serve(
            self._speak,
            sock=listener,
            backlog=ACCEPTED,
            create_connection=cast(type[ServerConnection], functools.partial(BoundedConnection, limit=self._limit)),
            process_request=self._admit,
            max_size=MAX_BYTES,
            max_queue=16,
            compression=None,
            open_timeout=PATIENCE_S,
            close_timeout=CLOSING_S,
            ping_interval=20,
            ping_timeout=20,
            server_header=None,
            logger=_quiet(),
        ):
            listener.listen(QUEUE)  # asyncio has set it to the number of connections that it accepts in one turn
            own = int(listener.getsockname()[1])
            write_atomically(self.folder / LIVE_PAGE, f"{self.live_page(own)}\n".encode(), private=True, durable=False)
            try:
                yield own
            finally:
                (self.folder / LIVE_PAGE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the journal."""
        self._store.close()

    # HTTP requests, before a connection becomes a WebSocket.

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the HTTP response to a request, or None to accept it as a WebSocket."""
        if not is_from_here(connection, request):
            return self._refusal(http.HTTPStatus.FORBIDDEN, "this service accepts connections from this machine only")
        if request.path == "/":
            return answer(http.HTTPStatus.OK, page(), kind="text/html; charset=utf-8", **policy_of_page())
        if request.path == "/healthz":
            return answer(http.HTTPStatus.OK, "ok\n")
        if request.path == "/metrics":
            if not may_watch(request, self.tokens):
                return self._refusal(http.HTTPStatus.UNAUTHORIZED, "the watcher's token is required")
            metrics = exposition(self.jobs.values(), taken=self.taken, refused=self.refused)
            return answer(http.HTTPStatus.OK, metrics, kind=CONTENT_TYPE)
        if (match := JOB.fullmatch(request.path) or HOLD.fullmatch(request.path)) and not may_speak(request, match[1], self.tokens):
            return self._refusal(http.HTTPStatus.UNAUTHORIZED, f"the token of `{match[1]}` is required")
        if not match and request.path != WATCH:
            return answer(http.HTTPStatus.NOT_FOUND, "this page does not exist")
        if match and self._is_of_another_run(match[1], request):
            return self._refusal(http.HTTPStatus.CONFLICT, in_use(match[1]))
        if not self._limit.admits(connection):
            return self._refusal(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{self._limit.most} connections are open, the maximum")
        return None

    def _refusal(self, status: http.HTTPStatus, text: str) -> Response:
        self.refused += 1
        return answer(status, text)

    # Messages on a WebSocket.

    async def _speak(self, connection: ServerConnection) -> None:
        """Serve a WebSocket until its end. An error ends this connection alone."""
        assert connection.request is not None
        try:
            if match := JOB.fullmatch(connection.request.path):
                await self._listen(connection, match[1])
            elif match := HOLD.fullmatch(connection.request.path):
                await self._hold(connection, match[1])
            else:
                await self._show(connection)
        except (ConnectionClosed, TimeoutError):
            pass
        except sqlite3.Error as error:  # the job sends its messages again
            self._bursts.warning("journal", f"the journal cannot be written, so no message is acknowledged: {error}")
            await close(connection, 1011, "the journal cannot be written")

    async def _show(self, connection: ServerConnection) -> None:
        """Send data to a watcher that has the token."""
        async with asyncio.timeout(PATIENCE_S):
            token = await connection.recv()
        if not isinstance(token, str) or not self.tokens.is_of_watcher(token):
            self.refused += 1
            await close(connection, 1008, "the watcher's token is required")
            return
        await answer_watcher(connection, self.jobs, self._titles)

    async def _listen(self, connection: ServerConnection, name: str) -> None:
        """Serve one job until its connection ends; a newer connection of the same run replaces an older one."""
        assert connection.request is not None
        try:
            if self._is_of_another_run(name, connection.request):  # both were admitted at the same moment
                raise ProtocolError(in_use(name))
            if (older := self._speaking.get(name)) is not None:
                self._dismiss(older)
            self._speaking[name] = connection
            async with asyncio.timeout(PATIENCE_S):
                hello = from_job(await connection.recv())
            if not isinstance(hello, Hello) or hello.job != name:
                raise ProtocolError(f"the first message is not the hello of `{name}`")
            job, stored = await self._store.begin(hello, run_of(connection.request))
            await send(connection, Welcome(number=stored).to_json())
            await self._take_in(connection, job)
        except (ProtocolError, TimeoutError) as error:
            self.refused += 1
            reason = "; ".join(filter(None, (error.message, error.hint))) if isinstance(error, ProtocolError) else _LATE
            await send(connection, Refused(reason=reason[:2000]).to_json())
            await close(connection, 1008)
        finally:
            if self._speaking.get(name) is connection:
                del self._speaking[name]

    async def _hold(self, connection: ServerConnection, name: str) -> None:
        """Keep a job's name for a run until the connection ends."""
        assert connection.request is not None
        if self._is_of_another_run(name, connection.request):
            await close(connection, TAKEN, "another run holds the name")
            return
        self._holding[name] = connection
        try:
            await send(connection, "held")
            await connection.wait_closed()
        finally:
            if self._holding.get(name) is connection:
                del self._holding[name]

    def _is_of_another_run(self, name: str, request: Request) -> bool:
        """Return True if an open connection of the name belongs to another run than a request; False if one of them states no run."""
        opened = [each for each in (self._speaking.get(name), self._holding.get(name)) if each and each.state is State.OPEN]
        runs = {run_of(each.request) for each in opened if each.request is not None} - {"", run_of(request)}
        return bool(runs and run_of(request))

    def _dismiss(self, older: ServerConnection) -> None:
        """Close a connection in the background: the other end may have vanished, and nobody waits for it."""
        task = asyncio.create_task(close(older, 1008, "a newer connection of the job replaces this one"))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _take_in(self, connection: ServerConnection, job: ControlledJob) -> None:
        """Read the messages of a job at a limited rate and process them in batches, until the connection ends."""
        async with reading(connection) as read:
            wrong = 0
            while wrong < WRONG and (texts := await next_batch(read)):
                wrong += await self._answer(connection, job, texts)
            if wrong >= WRONG:
                await close(connection, 1008, "too many damaged messages")

    async def _answer(self, connection: ServerConnection, job: ControlledJob, texts: list[str | bytes]) -> int:
        """Process a batch of messages: send a decision if due, and acknowledge; return the number of damaged messages."""
        messages, damaged = sorted_out(texts)
        self.refused += len(damaged)
        for message, text in messages:
            self._store.take(job, message, text)
        self._store.save(job)
        if decided := job.unheard():
            await send(connection, decided.to_json())
            job.heard(decided)
        if messages:
            ack = Ack(number=job.number)
            await self._store.on_disk()
            await send(connection, ack.to_json())
        for reason in damaged:
            await send(connection, Refused(reason=reason[:2000]).to_json())
        return len(damaged)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log that a connection could not be accepted; other programs may use up the file descriptors."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _SCARCE:
            self._bursts.warning("scarce", f"connections wait: {error.strerror}")
        else:
            loop.default_exception_handler(context)


def _quiet() -> logging.Logger:
    """Return a logger that hides the websockets library's messages below ERROR, such as broken connections."""
    logger = logging.getLogger("oppa.control.connections")
    logger.setLevel(logging.ERROR)
    return logger
