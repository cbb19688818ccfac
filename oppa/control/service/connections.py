"""Bound the number of connections, so that file descriptors remain for the journal and for health checks.

A connection that has sent no request is opening. When too many are opening, the oldest of them is closed: silent connections cannot keep
a health check out. A WebSocket beyond the limit gets HTTP status 503.
"""

import resource
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection

from oppa.control.service.burst_log import BurstLog

MOST = 4096
"""Maximum number of WebSockets, whatever the limit on file descriptors."""
ACCEPTED = 8
"""Connections that the event loop accepts in one turn; asyncio accepts as many as the backlog."""
RESERVED = 4 * ACCEPTED + 32
"""File descriptors for connections on their way in or out, and for the journal."""
_DESCRIPTORS = Path("/proc/self/fd")


def raise_limit() -> None:
    """Raise the soft limit on file descriptors to what the service can use, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class ConnectionLimit:
    """Counts the connections of a service.

    Args:
        log: Log of refusals.
    """

    def __init__(self, log: BurstLog) -> None:
        free = _free_descriptors() - RESERVED
        self.opening = max(4, min(MOST, free // 4))
        """Maximum number of connections without a request."""
        self.most = max(1, min(MOST, free - self.opening))
        """Maximum number of WebSockets."""
        self._log = log
        self._opening: dict[BoundedConnection, None] = {}
        self._admitted = set[BoundedConnection]()

    def opened(self, connection: "BoundedConnection") -> None:
        """Count a new connection; close the oldest one without a request if there are too many."""
        self._opening[connection] = None
        if len(self._opening) > self.opening:
            oldest = next(iter(self._opening))
            del self._opening[oldest]
            oldest.transport.abort()
            self._log.warning("opening", f"more than {self.opening} connections without a request: the oldest are closed")

    def admits(self, connection: ServerConnection) -> bool:
        """Return True, and count the connection as a WebSocket, if there are fewer than the maximum."""
        assert isinstance(connection, BoundedConnection)
        if len(self._admitted) >= self.most:
            self._log.warning("full", f"connections are refused: {self.most} are open, the most that the file descriptors allow")
            return False
        self._opening.pop(connection, None)
        self._admitted.add(connection)
        return True

    def closed(self, connection: "BoundedConnection") -> None:
        """Forget a connection."""
        self._opening.pop(connection, None)
        self._admitted.discard(connection)


class BoundedConnection(ServerConnection):
    """Counts against the limit of connections, from its first to its last moment.

    Args:
        limit: Where it is counted.
    """

    def __init__(self, *arguments: Any, limit: ConnectionLimit, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._limit = limit

    def connection_made(self, transport: Any) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self._limit.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._limit.closed(self)
        super().connection_lost(exc)


def _free_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(_DESCRIPTORS.iterdir())) if _DESCRIPTORS.is_dir() else RESERVED
    return 4 * MOST if soft == resource.RLIM_INFINITY else soft - used
