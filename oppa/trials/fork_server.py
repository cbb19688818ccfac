"""Control the parent of all ranks (`runners/fork_server.py`) from the tuner: start it under a guard, and read its events."""

import contextlib
import dataclasses
import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.trials import logs
from oppa.trials.guarded_process import GuardedProcess
from oppa.trials.placement import RankPlacement

_MAX_MESSAGE = 1 << 20


class ForkServer:
    """Runs the process that forks ranks. It is warm if it imports a program first, cold if each rank executes a command of its own."""

    def __init__(
        self, program: Path | None, *, environment: Mapping[str, str], grace_s: float, log: Path, python: str = sys.executable
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        self.pid: int | None = None
        """Process id of the server; None until it has started ranks."""
        flags = ["-P"] if program else ["-I", "-S"]
        command = [python, *flags, str(catalog.root() / "runners" / "fork_server.py"), str(theirs.fileno())]
        command += [str(program)] if program else []
        with theirs:
            self._guard = GuardedProcess(
                "the fork server", command, environment=environment, grace_s=grace_s, pass_fds=[theirs.fileno()], log=log
            )

    def start(self, launch_id: int, folder: Path, places: list[RankPlacement], words: Path) -> None:
        """Request the ranks of one launch, whose logs go to the folder `words`; `events` reports what becomes of it."""
        try:
            ranks = [dataclasses.asdict(place) for place in places]
            self._control.send(json.dumps({"launch_id": launch_id, "folder": str(folder), "logs": str(words), "ranks": ranks}).encode())
        except BrokenPipeError:
            return  # it is dead, which `ended` reports

    def events(self) -> list[dict[str, Any]]:
        """Return the events that the server has sent since the last call; never block."""
        events = []
        with contextlib.suppress(BlockingIOError):
            while packet := self._receive():
                events.append(json.loads(packet))
        self.pid = next((event["pid"] for event in events if event["event"] == "started"), self.pid)
        return events

    def ended(self) -> str:
        """Return how the server ended, in words; empty while it runs."""
        return self._guard.ended()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(_MAX_MESSAGE, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # raised once, ahead of the data that it sent, if the peer died without reading all
            return self._control.recv(_MAX_MESSAGE, socket.MSG_DONTWAIT)

    def last_words(self) -> str:
        """Return the last lines that the server itself has printed."""
        return logs.last_words(self._log)

    def end_ranks(self, grace_s: float) -> None:
        """End the ranks and all orphans, but not the server."""
        if self.pid is not None:
            self._guard.end_others(self.pid, grace_s)

    def close(self) -> None:
        """End the server and all ranks."""
        self._control.close()
        self._guard.close()
