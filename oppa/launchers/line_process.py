"""Run a command under a guard, write to its stdin, and read the lines of its stdout without blocking."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from oppa.trials.guarded_process import GuardedProcess

LINE_BYTES = 1 << 16
"""Longest line that is read whole."""
POLL_S = 0.005


class LineProcess:
    """Runs a command with pipes to its stdin and from its stdout; stderr goes to `log`. Messages call the command `name`."""

    def __init__(self, name: str, command: list[str], *, environment: Mapping[str, str], grace_s: float, log: Path) -> None:
        self._guard, self._in, self._out = GuardedProcess.with_pipes(name, command, environment=environment, grace_s=grace_s, log=log)
        os.set_blocking(self._out, False)
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Write to its stdin; `ended` reports it if the command does not read any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._in, data)

    def read(self) -> list[bytes]:
        """Return the lines since the last call; only the end of a line longer than LINE_BYTES is kept."""
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._out, 1 << 16):
                *whole, rest = (self._rest + data).split(b"\n")
                lines += whole
                self._rest = rest[-LINE_BYTES:]
        return lines

    def ended(self) -> str:
        """Return how the command ended; empty while it runs. Lines that it wrote before are still read."""
        return self._guard.ended()

    def hang_up(self) -> None:
        """Close its stdin, which asks it to end."""
        os.close(self._in)

    def wait_ended(self, within_s: float) -> None:
        """Return when the command has ended, or after `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def close(self) -> None:
        """End the command and all its descendants, after `hang_up`."""
        self._guard.close()
        os.close(self._out)
