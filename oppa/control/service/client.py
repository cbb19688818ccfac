"""Connect a job to the control service: rank 0 reports its steps and receives decisions, and never waits for either.

A background thread connects, sends and listens. It resends unacknowledged messages after a connection has broken. While the service is
unreachable, training continues unchanged. A decision counts only while the job has the configuration it was made for, but for a roll-back.
Both threads use the queue of messages and the last decision, under a lock; all else belongs to one of them.
"""

import asyncio
import collections
import contextlib
import dataclasses
import http
import itertools
import logging
import threading
import time
from collections.abc import Callable

from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from oppa.control.service.address import RUN, in_use, no_entry
from oppa.errors import ProtocolError
from oppa.plain_text import plain_text
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import (
    MAX_BYTES,
    ROLL_BACK,
    Ack,
    Changed,
    ChangeFacts,
    Decided,
    Hello,
    Refused,
    StepFacts,
    StepTaken,
    Welcome,
    from_service,
)
from oppa.training.run.run_controller import ControllerDecision

KEPT = 10_000
"""Maximum number of queued messages; beyond it, the oldest are dropped."""
FIRST_S, LONGEST_S = 0.2, 10.0
"""Initial and maximum seconds between attempts to connect."""
ANSWER_S, CLOSING_S = 10.0, 1.0
"""Timeouts in seconds for the service to answer a hello, and a closing handshake."""
_UNNUMBERED = 1
"""Placeholder for the number of a message that has not been sent."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Outgoing:
    """Holds a message that has not been sent or not been acknowledged."""

    message: StepTaken | Changed
    number: int | None = None
    """Number of the message, assigned when it is first sent."""

    @property
    def text(self) -> str:
        """Return the JSON text to send."""
        return self.message.model_copy(update={"number": self.number}).to_json()


class ControlClient:
    """Connects one job to its service; use it in a `with` statement, on rank 0.

    Args:
        address: `127.0.0.1:PORT`, the address the service listens on, on its own host.
        token: Token of this job.
        hello: First message of each connection, which describes the job.
        through: Address of the local end of a tunnel, if the service is on another machine.
        run: UUID of the run; the service refuses a second run under the name of a connected one. Empty: any run replaces another one.
    """

    def __init__(self, address: str, token: str, hello: Hello, *, through: str = "", run: str = "") -> None:
        self._host, _, port = (through or address).partition(":")
        self._port = int(port)
        self._url, self._token, self._hello = f"ws://{address}/job/{hello.job}", token, hello
        self._headers = {"Authorization": f"Bearer {token}"} | ({RUN: run} if run else {})
        self._warned = ""
        """The last reason for which the service refused this run; empty once it is welcome."""
        self._waiting = collections.deque[_Outgoing]()
        self._decided: Decided | None = None
        self.stays = False
        """True if the last decision that `wanted` took was to continue unchanged."""
        self._newest = 0
        """Largest number of a received decision; decisions that are sent again are ignored."""
        self._lock, self._news = threading.Lock(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: int | None = None
        self.blocked_s = 0.0
        """Total seconds spent in calls from the training thread."""
        self.connections = 0
        """Number of connections that the service has accepted so far."""
        self._thread = threading.Thread(target=self._run, name="oppa control", daemon=True)

    def __enter__(self) -> "ControlClient":
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, after at most one second in which the remaining messages are sent."""
        deadline = time.monotonic() + 1.0
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        self._call(self._close)
        self._thread.join(timeout=2.0)

    def step(self, facts: StepFacts) -> None:
        """Report a step. Facts that a message cannot hold are logged and left out."""
        self._tell(StepTaken, facts)

    def changed(self, facts: ChangeFacts) -> None:
        """Report the outcome of a change."""
        self._tell(Changed, facts)

    def wanted(self, present: Configuration) -> ControllerDecision | None:
        """Return what the job should do, or None to continue unchanged.

        Each decision is returned at most once, and only if it was made for the `present` configuration. A roll-back waits for this call,
        whatever is decided or changed meanwhile.
        """
        begin_s = time.perf_counter()
        with self._lock:
            decided, self._decided = self._decided, None
        self.blocked_s += time.perf_counter() - begin_s
        if decided is None or not decided.is_for(present):
            return None
        self.stays = decided.command == "no_op"
        if self.stays:
            return None
        weighed = decided.model_dump(include={"limits", "current", "chosen", "best"})
        return ControllerDecision(
            configuration=decided.configuration,
            local_batches=tuple(decided.local_batches),
            reason=decided.reason,
            weighed=weighed,
            before_step=decided.before_step,
        )

    def _tell(self, kind: type[StepTaken] | type[Changed], facts: StepFacts | ChangeFacts) -> None:
        begin_s = time.perf_counter()
        try:
            message = kind(number=_UNNUMBERED, **{name: getattr(facts, name) for name in facts.model_fields_set})
        except ValidationError as error:  # training continues without this report
            _log.warning("a step cannot be reported: %s", error)
            return
        with self._lock:
            if len(self._waiting) >= KEPT:
                self._waiting.popleft()
            self._waiting.append(_Outgoing(message))
        self._call(self._news.set)
        self.blocked_s += time.perf_counter() - begin_s

    def _call(self, function: Callable[[], object]) -> None:
        """Let the client's own thread call a function, unless it has not begun or has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        with asyncio.Runner(loop_factory=lambda: loop):  # it cancels the remaining tasks when it closes the loop
            self._speaking = loop.create_task(self._speak())
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(self._speaking)

    def _close(self) -> None:
        """Stop the connection; runs in the client's own thread."""
        self._speaking.cancel()

    async def _speak(self) -> None:
        """Connect, and reconnect with exponential back-off whenever the connection ends."""
        wait_s = FIRST_S
        while True:
            begin_s = time.monotonic()
            try:
                await self._converse()
            except Exception as error:  # noqa: BLE001 - whatever the other end causes, training goes on, and so do the attempts
                self._note(error)
            wait_s = FIRST_S if time.monotonic() - begin_s > LONGEST_S else min(2 * wait_s, LONGEST_S)
            await asyncio.sleep(wait_s)

    def _note(self, error: Exception) -> None:
        """Log why there is no connection: as a warning, once for each reason, if the service refuses this run or is not understood."""
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        if status == http.HTTPStatus.UNAUTHORIZED:
            why = no_entry(self._hello.job)
        elif status == http.HTTPStatus.CONFLICT:
            why = f"{in_use(self._hello.job)}: this run trains on without decisions until the other one ends"
        elif isinstance(error, ProtocolError):
            hint = f"; {error.hint}" if error.hint else ""
            why = f"this run trains on without decisions: {self._words(error)}{hint}"
        else:
            why = ""
        if why and why != self._warned:
            _log.warning("%s", why)
            self._warned = why
        else:
            _log.info("the control service is not reachable: %s", self._words(error))

    def _words(self, error: Exception) -> str:
        """Return an error's message for a log: it may quote the token, and what the other end sent."""
        return plain_text(str(error).replace(self._token, "TOKEN"))

    def _connected(self) -> connect:
        return connect(
            self._url,
            host=self._host,
            port=self._port,
            additional_headers=self._headers,
            max_size=MAX_BYTES,
            compression=None,
            logger=_quiet(),
            open_timeout=ANSWER_S,
            close_timeout=CLOSING_S,
            proxy=None,
        )

    async def _converse(self) -> None:
        """Use one connection until it ends, and close its socket even if the client is cancelled during the closing handshake."""
        line = await self._connected()
        try:
            async with line:
                await self._talk(line)
        finally:
            line.transport.abort()

    async def _talk(self, line: ClientConnection) -> None:
        """Send queued messages and receive answers until the connection breaks."""
        await line.send(self._hello.to_json())
        async with asyncio.timeout(ANSWER_S):
            welcome = from_service(await line.recv())
        if not isinstance(welcome, Welcome):
            reason = welcome.reason if isinstance(welcome, Refused) else f"it answered `{welcome.type}`"
            of_fields = "; check that both have the same version of oppa" if reason.startswith("`") else ""
            raise ProtocolError(f"the control service refuses the connection: {reason}{of_fields}")
        self.connections += 1
        self._warned = ""
        self._acknowledged(welcome.number)
        self._next = max(self._next or 0, welcome.number + 1)
        unsent = self._again()
        listening = asyncio.create_task(self._listen(line))
        try:
            while not listening.done():
                for outgoing in unsent:
                    await line.send(outgoing)
                await self._news.wait()
                self._news.clear()
                unsent = self._new()
        finally:
            listening.cancel()

    async def _listen(self, line: ClientConnection) -> None:
        try:
            async for text in line:
                said = from_service(text)
                if isinstance(said, Ack):
                    self._acknowledged(said.number)
                elif isinstance(said, Decided) and said.number > self._newest:
                    with self._lock:
                        is_owed = self._decided is not None and self._decided.command == ROLL_BACK != said.command
                        self._decided, self._newest = self._decided if is_owed else said, said.number
                elif isinstance(said, Refused):
                    _log.warning("the control service refused a message: %s", said.reason)
        except (ConnectionClosed, ProtocolError, OSError) as error:
            _log.info("the connection to the control service was lost: %s", self._words(error))
        finally:
            self._news.set()

    def _acknowledged(self, number: int) -> None:
        with self._lock:
            while self._waiting and self._waiting[0].number is not None and self._waiting[0].number <= number:
                self._waiting.popleft()

    def _again(self) -> list[str]:
        """Return the unacknowledged messages of a broken connection with their old numbers, then the new messages."""
        with self._lock:
            sent = [each for each in self._waiting if each.number is not None]
        return [each.text for each in sent] + self._new()

    def _new(self) -> list[str]:
        """Number the messages that have never been sent, and return them."""
        assert self._next is not None
        with self._lock:
            new = list(itertools.takewhile(lambda each: each.number is None, reversed(self._waiting)))[::-1]
            for each in new:
                each.number, self._next = self._next, self._next + 1
        return [each.text for each in new]


def _quiet() -> logging.Logger:
    """Return a logger that hides the websockets library's messages below INFO: at DEBUG, they quote the token."""
    logger = logging.getLogger("oppa.control.client")
    logger.setLevel(logging.INFO)
    return logger
