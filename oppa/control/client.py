"""A job's line to the control service: rank 0 tells its steps, hears what to do, and never waits for either.

A thread of its own connects, sends and listens. What was not acknowledged is sent again when the line has broken; while the service is
away, training goes on as it is. An answer counts only while the job is in what the answer was meant for.
"""

import collections
import dataclasses
import itertools
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException
from websockets.sync.client import ClientConnection, connect

from oppa.errors import ProtocolError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import MAX_BYTES, Ack, Changed, Decided, Hello, Refused, StepTaken, Welcome, from_service
from oppa.training.adviser import Advice

KEPT = 10_000
"""Messages that wait for a service that is away; older steps are let go of."""
FIRST_S, LONGEST_S = 0.2, 10.0
"""Between attempts to connect: at first, and at most."""
ANSWER_S = 10.0
"""In which the service must answer a hello."""
_UNNUMBERED = 1
"""Until a message is sent."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Outgoing:
    """What waits to be sent, or to be acknowledged."""

    message: StepTaken | Changed
    number: int | None = None
    """Given when it is first sent."""

    @property
    def text(self) -> str:
        """As it is sent."""
        return self.message.model_copy(update={"number": self.number}).to_json()


class ControlClient:
    """Of one job; use it with `with`, on rank 0.

    Args:
        address: `127.0.0.1:PORT`, as the service knows itself.
        token: The job's own.
        hello: What the job says of itself.
        through: Where a tunnel to it begins, if it is not on this machine.
    """

    def __init__(self, address: str, token: str, hello: Hello, *, through: str = "") -> None:
        self._host, _, port = (through or address).partition(":")
        self._port = int(port)
        self._url, self._token, self._hello = f"ws://{address}/job/{hello.job}", token, hello
        self._waiting = collections.deque[_Outgoing]()
        self._decided: Decided | None = None
        self._newest = 0
        """Of the messages that decisions answered: what is told again does not count again."""
        self._lock, self._news, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._next: int | None = None
        self.blocked_s = 0.0
        """That calls have taken in all."""
        self.connections = 0
        self._thread = threading.Thread(target=self._run, name="oppa control", daemon=True)

    def __enter__(self) -> "ControlClient":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give what is left a moment to get through."""
        deadline = time.monotonic() + 1.0
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        self._closed.set()
        self._news.set()
        self._thread.join(timeout=2.0)

    def step(self, **facts: Any) -> None:
        """Tell of a step; `facts` are the fields of StepTaken but its number."""
        self._tell(StepTaken, facts)

    def changed(self, **facts: Any) -> None:
        """Tell what became of a change; `facts` are the fields of Changed but its number."""
        self._tell(Changed, facts)

    def wanted(self, present: Configuration) -> Advice | None:
        """What the job should do; None: go on as it is. An answer is given once, and only if it was meant for this state."""
        begin_s = time.perf_counter()
        with self._lock:
            decided, self._decided = self._decided, None
        self.blocked_s += time.perf_counter() - begin_s
        if decided is None or decided.command == "no_op" or decided.before != present:
            return None
        weighed = decided.model_dump(include={"limits", "current", "chosen", "best"})
        return Advice(
            configuration=decided.configuration,
            local_batches=tuple(decided.local_batches),
            reason=decided.reason,
            weighed=weighed,
            before_step=decided.before_step,
        )

    def _tell(self, kind: type[StepTaken] | type[Changed], facts: Mapping[str, Any]) -> None:
        begin_s = time.perf_counter()
        try:
            message = kind(number=_UNNUMBERED, **facts)
        except ValidationError as error:  # training goes on, whatever its numbers are
            _log.warning("a step cannot be told of: %s", error)
            return
        with self._lock:
            if len(self._waiting) >= KEPT:
                self._waiting.popleft()
            self._waiting.append(_Outgoing(message))
        self._news.set()
        self.blocked_s += time.perf_counter() - begin_s

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._closed.is_set():
            begin_s = time.monotonic()
            try:
                with self._connected() as line:
                    self._talk(line)
            except (OSError, TimeoutError, ConnectionClosed, InvalidHandshake, WebSocketException, ProtocolError) as error:
                _log.info("the control service is away: %s", error)
            wait_s = FIRST_S if time.monotonic() - begin_s > LONGEST_S else min(2 * wait_s, LONGEST_S)
            self._closed.wait(wait_s)

    def _connected(self) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self._token}"}
        way = socket.create_connection((self._host, self._port), timeout=ANSWER_S)
        return connect(
            self._url, sock=way, additional_headers=headers, max_size=MAX_BYTES, compression=None, open_timeout=ANSWER_S, proxy=None
        )

    def _talk(self, line: ClientConnection) -> None:
        """Send what waits and hear what is said, until the line breaks."""
        line.send(self._hello.to_json())
        welcome = from_service(line.recv(timeout=ANSWER_S))
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"the service does not welcome the job: {welcome}")
        self.connections += 1
        self._acknowledged(welcome.number)
        self._next = max(self._next or 0, welcome.number + 1)
        unsent = self._again()
        listener = threading.Thread(target=self._listen, args=(line,), name="oppa control, listening", daemon=True)
        listener.start()
        while not self._closed.is_set() and listener.is_alive():
            for outgoing in unsent:
                line.send(outgoing)
            self._news.wait(timeout=0.5)
            self._news.clear()
            unsent = self._new()
        line.close()
        listener.join(timeout=2.0)

    def _listen(self, line: ClientConnection) -> None:
        try:
            for text in line:
                said = from_service(text)
                if isinstance(said, Ack):
                    self._acknowledged(said.number)
                elif isinstance(said, Decided) and said.number > self._newest:
                    with self._lock:
                        self._decided, self._newest = said, said.number
                elif isinstance(said, Refused):
                    _log.warning("the control service refuses: %s", said.reason)
        except (ConnectionClosed, ProtocolError, OSError) as error:
            _log.info("the line to the control service: %s", error)
            line.close()
        finally:
            self._news.set()

    def _acknowledged(self, number: int) -> None:
        with self._lock:
            while self._waiting and self._waiting[0].number is not None and self._waiting[0].number <= number:
                self._waiting.popleft()

    def _again(self) -> list[str]:
        """What was sent on a line that broke, with the numbers that it had, and what has come since."""
        with self._lock:
            sent = [each for each in self._waiting if each.number is not None]
        return [each.text for each in sent] + self._new()

    def _new(self) -> list[str]:
        """What has never been sent; it gets its numbers."""
        assert self._next is not None
        with self._lock:
            new = list(itertools.takewhile(lambda each: each.number is None, reversed(self._waiting)))[::-1]
            for each in new:
                each.number, self._next = self._next, self._next + 1
        return [each.text for each in new]
