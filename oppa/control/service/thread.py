"""Run a control service in a background thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

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
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    ports, failures = list[int](), list[OSError]()

    async def serve() -> None:
        try:
            async with service.open(port) as own:
                ports.append(own)
                ready.set()
                await stop.wait()
        except OSError as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="oppa control service", daemon=True)
    thread.start()
    ready.wait()
    try:
        if failures:
            raise EnvironmentLackingError(
                f"the service cannot listen on port {port}: {failures[0].strerror}", hint="choose another port, or 0 for a free one"
            )
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
