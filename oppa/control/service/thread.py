"""Run a control service in a background thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from oppa.control.service.server import Service
from oppa.errors import EnvironmentLackingError


@contextlib.contextmanager
def serve_in_thread(service: Service, port: int = 0) -> Iterator[int]:
    """Serve in a background thread inside a `with` block, and yield the port.

    Args:
        port: Port to listen on; 0 picks a free one.

    Raises:
        EnvironmentLackingError: if the service cannot listen on the port, for example because it is taken.
    """
    loop, stop, opened = asyncio.new_event_loop(), asyncio.Event(), Future[int]()

    async def serve() -> None:
        try:
            async with service.open(port) as own:
                opened.set_result(own)
                await stop.wait()
        except Exception as error:  # the caller waits for a port or a reason
            if opened.done():
                raise
            opened.set_exception(error)

    def run() -> None:
        loop.run_until_complete(serve())
        if late := asyncio.all_tasks(loop):  # connections that were accepted while the server closed
            for task in late:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*late, return_exceptions=True))

    thread = threading.Thread(target=run, name="oppa control service", daemon=True)
    thread.start()
    try:
        try:
            own = opened.result()
        except OSError as error:
            message = f"the service cannot listen on port {port}: {error.strerror}"
            raise EnvironmentLackingError(message, hint="choose another port, or 0 for a free one") from None
        yield own
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
