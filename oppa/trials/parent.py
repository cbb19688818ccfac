"""The tuner's side of `runners/parent.py`: the parent of all ranks, under a guard, and what it tells."""

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
from oppa.trials.guard import Guard
from oppa.trials.placement import Placement

_MAX_MESSAGE = 1 << 20


class RankParent:
    """The process that forks ranks: warm if it imports a program first, cold if each rank executes a command of its own."""

    def __init__(
        self, program: Path | None, *, environment: Mapping[str, str], grace_s: float, log: Path, python: str = sys.executable
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        self.pid: int | None = None
        """Known once it has started a gang."""
        flags = ["-P"] if program else ["-I", "-S"]
        command = [python, *flags, str(catalog.root() / "runners" / "parent.py"), str(theirs.fileno())]
        command += [str(program)] if program else []
        with theirs:
            self._guard = Guard(
                "the parent of the ranks", command, environment=environment, grace_s=grace_s, pass_fds=[theirs.fileno()], log=log
            )

    def start(self, gang: int, folder: Path, places: list[Placement], words: Path) -> None:
        """Ask for a gang of ranks, whose logs lie in `words`; the events tell what became of it."""
        try:
            ranks = [dataclasses.asdict(place) for place in places]
            self._control.send(json.dumps({"gang": gang, "folder": str(folder), "logs": str(words), "ranks": ranks}).encode())
        except BrokenPipeError:
            return  # it is dead, which `ended` tells

    def events(self) -> list[dict[str, Any]]:
        """What it has told since the last call; never blocks."""
        events = []
        with contextlib.suppress(BlockingIOError):
            while packet := self._receive():
                events.append(json.loads(packet))
        self.pid = next((event["pid"] for event in events if event["event"] == "started"), self.pid)
        return events

    def ended(self) -> str:
        """How it ended; empty while it runs."""
        return self._guard.ended()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(_MAX_MESSAGE, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # told once where the peer died without reading all, ahead of what it had sent
            return self._control.recv(_MAX_MESSAGE, socket.MSG_DONTWAIT)

    def last_words(self) -> str:
        """The end of what it printed itself."""
        return logs.last_words(self._log)

    def end_ranks(self, grace_s: float) -> None:
        """End everything below it and everything orphaned, but not itself."""
        if self.pid is not None:
            self._guard.end_others(self.pid, grace_s)

    def close(self) -> None:
        """End it and everything below."""
        self._control.close()
        self._guard.close()
