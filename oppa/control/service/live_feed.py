"""Send data to the live page: all jobs at first, then the changed ones once a second."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.server import ServerConnection

from oppa.control.service.job import ControlledJob

PERIOD_S = 1.0
"""Seconds between two updates."""


async def answer_watcher(connection: ServerConnection, jobs: Mapping[str, ControlledJob]) -> None:
    """Send updates as JSON until the connection ends."""
    seen: dict[str, int] = {}
    while True:
        changed = {name: job for name, job in jobs.items() if seen.get(name) != job.number}
        if changed:
            await connection.send(json.dumps({name: shown(job) for name, job in changed.items()}))
            seen |= {name: job.number for name, job in changed.items()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S):
                await connection.wait_closed()
                return


def shown(job: ControlledJob) -> dict[str, Any]:
    """Return the data of a job that the live page shows."""
    return {"points": job.history.points, "decisions": job.decisions, "worth": job.controller.to_dict()}
