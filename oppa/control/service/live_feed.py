"""Send data to the live page: all jobs at first, then what is new of the changed ones once a second, one message each."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from websockets.asyncio.server import ServerConnection

from oppa.control.service.history import BEGINNING
from oppa.control.service.intake import send
from oppa.control.service.job import ControlledJob

PERIOD_S = 1.0
"""Seconds between two updates."""


async def answer_watcher(connection: ServerConnection, jobs: Mapping[str, ControlledJob], titles: Mapping[str, str]) -> None:
    """Send updates as JSON until the connection ends.

    Args:
        titles: What the page calls a job, by name; a job that lacks one is called by its name.

    Raises:
        ConnectionClosed, TimeoutError: those of `send`.
    """
    seen: dict[str, _Seen] = {}
    while True:
        for name, job in list(jobs.items()):
            earlier, seen[name] = seen.get(name), _Seen(job, job.number, job.history.mark)
            if earlier == seen[name]:
                continue
            mark = earlier.mark if earlier is not None and earlier.job is job else BEGINNING
            update = {name: {"title": titles.get(name, name), **shown(job, mark)}}
            await send(connection, json.dumps(update))  # other connections are served between two jobs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S):
                await connection.wait_closed()
                return


class _Seen(NamedTuple):
    """Holds what a watcher has of a job."""

    job: ControlledJob
    """The job itself, whose name another run may take over."""
    number: int
    mark: tuple[int, int]


def shown(job: ControlledJob, mark: tuple[int, int] = BEGINNING) -> dict[str, Any]:
    """Return the data of a job that the live page shows: `points` follow the first `known` ones that it has from before."""
    known, points = job.history.since(mark)
    return {"known": known, "points": points, "decisions": job.decisions, "worth": job.controller.to_dict()}
