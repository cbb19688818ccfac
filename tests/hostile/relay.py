"""Start an agent, and pass its commands and events on: twice, late, mixed with other lines, tampered with, or not at all.

python relay.py KIND HOST FOLDER COMMAND...; what happens once leaves a file in FOLDER. There the file TAMPER names how to tamper.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOISE = (
    "a word",
    "{",
    '{"event": "exit"',
    '{"event": "exit", "host": 7, "launch_id": 1}',
    '{"event": "exit", "host": "0", "launch_id": 1}',
    '{"event": "exit", "host": 0, "launch_id": 99}',
    '{"event": "ended", "host": -1, "launch_id": 1}',
    '{"event": 3, "host": 0}',
    '{"event": "port", "host": 0, "launch_id": 0, "port": 1}',
    "[" * 100_000,
    "null",
    "\0\0",
)
TAMPER = "tamper"


class Relay:
    """Passes lines on in one way, for one host."""

    def __init__(self, kind: str, host: int, marks: Path) -> None:
        self.kind, self.host, self._marks = kind, host, marks
        self._seen: list[dict[str, Any]] = []

    def commands(self, line: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what the agent receives for a command of the tuner."""
        self._seen.append(line)
        if self._loses(line["do"]):
            return
        self._wait()
        yield line
        if self.kind == "doubled":
            yield line
        if self.kind == "repeated":
            yield from (each for each in self._seen if each["launch_id"] < line["launch_id"])

    def events(self, line: dict[str, Any]) -> Iterator[str]:
        """Yield the lines that the tuner receives for an event of the agent."""
        if self._loses(line["event"]):
            return
        self._wait()
        how = (self._marks / TAMPER).read_text() if self.kind == "tampered" else ""
        if line["event"] == "exit" and how and self.host == 1 and self._first(how):
            folder = Path(next(each["folder"] for each in reversed(self._seen) if each["do"] == "start"))
            (folder / "exit1.json").unlink()
            TAMPERED[how](folder / "exit1.json")
        yield from NOISE if self.kind == "noisy" else ()
        yield from [json.dumps(line)] * (3 if self.kind == "doubled" else 1)

    def _loses(self, name: str) -> bool:
        return self.kind == f"lost {name}" and self.host == 1 and self._first(name)

    def _wait(self) -> None:
        if self.kind == "late" and self.host == 1:
            time.sleep(0.3)

    def _first(self, name: str) -> bool:
        """Return True for the first call with this name, of all relays."""
        try:
            (self._marks / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def edited(**changes: Any) -> Callable[[Path], None]:
    process = {
        "rank": 0,
        "code": 0,
        "signal": None,
        "time": 1.0,
        **{key: changes.pop(key) for key in list(changes) if key in ("code", "signal", "time")},
    }
    whole = {"processes": [process], "failure": "", "kernel_oom": False, "revoked": "", "traceback": "", **changes}
    return lambda path: path.write_text(json.dumps(whole)) and None


TAMPERED: dict[str, Callable[[Path], Any]] = {
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda path: None,
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "deep": lambda path: path.write_text("[" * 100_000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "an unknown signal": edited(signal=999),
    "a text for a code": edited(code="0"),
    "no time": edited(time=float("nan")),
    "escapes": edited(failure="\x1b[2J" * 100_000),
    "processes of another kind": edited(processes={"rank": 0}),
}


def forward_events(relay: Relay, agent: "subprocess.Popen[str]") -> None:
    assert agent.stdout is not None
    for line in agent.stdout:
        for out in relay.events(json.loads(line)):
            print(out, flush=True)


def main() -> None:
    relay = Relay(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    with subprocess.Popen(sys.argv[4:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        threading.Thread(target=forward_events, args=(relay, agent), daemon=True).start()
        for line in sys.stdin:
            for command in relay.commands(json.loads(line)):
                agent.stdin.write(json.dumps(command) + "\n")
                agent.stdin.flush()
        agent.stdin.close()


if __name__ == "__main__":
    main()
