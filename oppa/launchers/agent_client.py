"""Connect the tuner to the agents (`agent.py`): start them under guards, send commands and receive events."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.launchers.event_line import LEAVING, LOST
from oppa.launchers.line_process import POLL_S, LineProcess
from oppa.regular_file import parse_json
from oppa.trials import logs

READY_S = 120.0
"""Seconds for an agent to start; it imports oppa, perhaps from a slow file system."""
ANSWER_S = 20.0

Event = dict[str, Any]


class AgentClient:
    """Connects to the agents of all hosts, started by one command for all (srun) or by one per host."""

    def __init__(self, commands: Sequence[list[str]], *, hosts: int, environment: Mapping[str, str], grace_s: float, log: Path) -> None:
        self._hosts = hosts
        self._log = log
        self._grace_s = grace_s
        name = "the command that starts the agents"
        self._streams = [LineProcess(name, command, environment=environment, grace_s=grace_s, log=log) for command in commands]
        self._heard: list[Event] = []
        self._ready = False
        self.lost: int | None = None
        """Number of a host that is gone; None while none is known to be."""
        self.leaving: int | None = None
        """Number of a host whose agent was signalled to end; None while none was."""

    def wait_ready(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Return when all agents have reported that they are ready; raises OSError if one of them fails or times out."""
        if not self._ready:
            self.wait_for("ready", self._hosts, READY_S, on_tick)
            self._ready = True

    def ask_port(self, launch_id: int) -> int:
        """Return a free port of the first host, for one launch; raises OSError if it does not answer."""
        self.tell(do="port", launch_id=launch_id)
        return int(self.wait_for("port", 1, ANSWER_S, launch_id=launch_id)[0]["port"])

    def tell(self, **said: Any) -> None:
        """Send a command to all agents. If one has ended, `ended` reports it."""
        for stream in self._streams:
            stream.write((json.dumps(said) + "\n").encode())

    def events(self) -> list[Event]:
        """Return the events since the last call, without blocking."""
        lines = [line for stream in self._streams for line in stream.read()]
        events = [event for line in lines if (event := _event(line, self._hosts))]
        self.lost = next((event["host"] for event in events if event["event"] == LOST), self.lost)
        self.leaving = next((event["host"] for event in events if event["event"] == LEAVING), self.leaving)
        heard, self._heard = [*self._heard, *events], []
        return heard

    def ended(self) -> str:
        """Return how one of the commands ended; empty while all of them run."""
        return next((how for stream in self._streams if (how := stream.ended())), "")

    def wait_for(self, kind: str, count: int, within_s: float, on_tick: Callable[[], None] = lambda: None, **wanted: Any) -> list[Event]:
        """Wait for an event of this kind, with the fields `wanted`, from `count` hosts; `events` returns all other events.

        A host counts once, however often its event arrives.

        Raises:
            OSError: a command has ended, or the events do not arrive within `within_s` seconds.
        """
        found: dict[int, Event] = {}
        deadline = time.monotonic() + within_s
        while True:
            others: list[Event] = []
            for event in self.events():
                if event["event"] == kind and wanted.items() <= event.items():
                    found.setdefault(event["host"], event)
                else:
                    others.append(event)
            self._heard = others
            if len(found) >= count:
                return list(found.values())
            if how := self.ended():
                raise OSError(f"{how}: {self.last_words() or 'no output'}")
            if time.monotonic() > deadline:
                missing = sorted(set(range(self._hosts)) - found.keys())
                raise OSError(f"no answer from host {missing[0]} within {within_s:g} s: {self.last_words() or 'no output'}")
            on_tick()
            time.sleep(POLL_S)

    def all_ended(self, launch_id: int, within_s: float) -> bool:
        """Return True if all hosts report within `within_s` seconds that no process of the trial is left."""
        try:
            self.wait_for("ended", self._hosts, within_s, launch_id=launch_id)
        except OSError:
            return False
        return True

    def last_words(self) -> str:
        """Return the end of the agents' output, without events."""
        return logs.last_words(self._log)

    def close(self) -> None:
        """End the agents and all processes that they have started."""
        for stream in self._streams:
            stream.hang_up()
        deadline = time.monotonic() + self._grace_s
        for stream in self._streams:
            stream.wait_ended(deadline - time.monotonic())
        for stream in self._streams:
            stream.close()


def _event(line: bytes, hosts: int) -> Event | None:
    """Return the event in a line; None for any other output, and for lines that srun has mixed."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    known = isinstance(event, dict) and isinstance(event.get("event"), str) and type(event.get("host")) is int
    return event if known and 0 <= event["host"] < hosts else None
