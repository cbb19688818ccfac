"""Send data to the live page: all jobs at first, then the changed ones once a second, one message each."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.server import ServerConnection

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
    seen: dict[str, int] = {}
    while True:
        for name, job in [each for each in jobs.items() if seen.get(each[0]) != each[1].number]:
            seen[name] = job.number
            update = {name: {"title": titles.get(name, name), **shown(job)}}
            await send(connection, json.dumps(update))  # other connections are served between two jobs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S):
                await connection.wait_closed()
                return


def shown(job: ControlledJob) -> dict[str, Any]:
    """Return the data of a job that the live page shows."""
    return {"points": job.history.points, "decisions": job.decisions, "worth": job.controller.to_dict()}
