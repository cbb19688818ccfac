"""Answer HTTP requests to the service: who may open a WebSocket, the live page, the health check and the metrics."""

import http
import re

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from oppa.control.service.address import RUN
from oppa.control.service.tokens import Tokens
from oppa.launchers.network import LOOPBACK
from oppa.protocol.messages import NAME

JOB = re.compile(f"/job/({NAME})")
"""Path of a job's connection."""
HOLD = re.compile(f"/job/({NAME})/hold")
"""Path on which a run holds a job's name."""
WATCH = "/watch"
"""Path of the live page's connection."""
_UUID = re.compile("[0-9a-f-]{36}")


def is_from_here(connection: ServerConnection, request: Request) -> bool:
    """Return True if Host and Origin name the service itself: a browser on this machine may act for a foreign page."""
    own = f"{LOOPBACK}:{connection.local_address[1]}", f"localhost:{connection.local_address[1]}"
    hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
    return len(hosts) == 1 and hosts[0] in own and all(origin in [f"http://{host}" for host in own] for origin in origins)


def may_speak(request: Request, job: str, tokens: Tokens) -> bool:
    """Return True if a request has the job's token, and comes from no browser."""
    return not request.headers.get_all("Origin") and tokens.is_of_job(_bearer(request), job)


def run_of(request: Request) -> str:
    """Return the UUID of the run that a request belongs to; empty if it states none, as older clients do."""
    words = request.headers.get_all(RUN)
    return words[0] if len(words) == 1 and _UUID.fullmatch(words[0]) else ""


def may_watch(request: Request, tokens: Tokens) -> bool:
    """Return True if a request has the watcher's token."""
    return tokens.is_of_watcher(_bearer(request))


def answer(status: http.HTTPStatus, text: str, *, kind: str = "text/plain; charset=utf-8", **headers: str) -> Response:
    """Return an HTTP response, after which the connection is closed.

    Args:
        status: HTTP status.
        text: Body.
        kind: Its media type.
        headers: Further headers, with `_` for `-`.
    """
    body = text.encode()
    fixed = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", "X-Content-Type-Options": "nosniff"}
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Response(status.value, status.phrase, Headers({**fixed, "Cache-Control": "no-store", **named}), body)


def _bearer(request: Request) -> str:
    """Return the bearer token of a request; empty without a valid one."""
    words = request.headers.get_all("Authorization")
    return words[0].removeprefix("Bearer ") if len(words) == 1 and words[0].startswith("Bearer ") and words[0].isascii() else ""
