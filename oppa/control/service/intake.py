"""Read the messages of a connection at a limited rate, and send it answers that it must read in time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from oppa.errors import ProtocolError
from oppa.protocol.messages import Changed, Hello, StepTaken, from_job

PER_S, BURST = 100.0, 1000
"""Messages read from a connection per second, and size of a burst that is read without delay."""
QUEUED = 256
"""Maximum number of messages of a connection that were read but not processed."""
SENT_S = 10.0
"""Seconds within which a connection must take a message; one that does not read is closed."""

Received = tuple[StepTaken | Changed, str]
"""A message and its JSON text."""


@contextlib.asynccontextmanager
async def reading(connection: ServerConnection) -> AsyncIterator["asyncio.Queue[str | bytes | None]"]:
    """Yield a queue of a connection's messages, which ends with None, inside an `async with` block."""
    read: asyncio.Queue[str | bytes | None] = asyncio.Queue(QUEUED)
    reader = asyncio.create_task(_read(connection, read))
    try:
        yield read
    finally:
        reader.cancel()


async def next_batch(read: "asyncio.Queue[str | bytes | None]") -> list[str | bytes]:
    """Wait for a message, and return it with those that have also arrived; an empty list at the end."""
    if (first := await read.get()) is None:
        return []
    texts = [first]
    while not read.empty():
        if (more := read.get_nowait()) is None:
            read.put_nowait(None)
            break
        texts.append(more)
    return texts


async def send(connection: ServerConnection, text: str) -> None:
    """Send a message.

    Raises:
        ConnectionClosed: if the connection is closed.
        TimeoutError: if the other end does not read; the connection is closed.
    """
    try:
        async with asyncio.timeout(SENT_S):
            await connection.send(text)
    except TimeoutError:
        connection.transport.abort()
        raise


async def close(connection: ServerConnection, code: int, reason: str = "") -> None:
    """Close a connection; it is cut off if the other end does not read."""
    try:
        async with asyncio.timeout(SENT_S):
            await connection.close(code, reason)
    except TimeoutError:
        connection.transport.abort()


def sorted_out(texts: list[str | bytes]) -> tuple[list[Received], list[str]]:
    """Separate texts into valid messages, and the errors of the damaged ones."""
    messages, damaged = list[Received](), list[str]()
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


class Pace:
    """Limits a rate: passes BURST messages at once, then PER_S a second (token bucket)."""

    def __init__(self) -> None:
        self._left, self._seen_s = float(BURST), time.monotonic()

    async def wait(self) -> None:
        """Wait until one more message may be read."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._seen_s) * PER_S) - 1
        self._seen_s = now
        if self._left < 0:
            await asyncio.sleep(-self._left / PER_S)


async def _read(connection: ServerConnection, read: "asyncio.Queue[str | bytes | None]") -> None:
    """Put the messages of a connection into a queue at a limited rate, and None at its end."""
    pace = Pace()
    with contextlib.suppress(ConnectionClosed):
        async for text in connection:
            await pace.wait()
            await read.put(text)
    await read.put(None)
