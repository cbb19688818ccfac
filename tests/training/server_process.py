"""Send requests to a rank server, a process whose forks are ranks."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


class ServerProcess:
    """Starts a rank server with the first request. One whose request was broken off is killed, and the next request starts another.

    The server first prints a line about itself. It answers each request, a line on its stdin, with a line of the request's number and the
    ranks' exit codes.

    Args:
        command: Command line of the server.
        environment: Its environment.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment, self._number = command, environment, 0
        self._process: subprocess.Popen[str] | None = None
        self.greeting: Any = None
        """First line that the server has printed; None before the first start."""

    def start(self) -> None:
        """Start the server if there is none, and wait until it has imported all it needs."""
        if self._process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            # A session of its own, so that it can be killed together with its ranks.
            self._process = subprocess.Popen(self._command, env=self._environment, **pipes, text=True, start_new_session=True)
            self.greeting = self._line()

    def request(self, **values: Any) -> list[int]:
        """Return the exit codes of all ranks."""
        try:
            self.start()
            assert self._process is not None and self._process.stdin is not None
            self._number += 1
            self._process.stdin.write(json.dumps({"number": self._number, **values}) + "\n")
            self._process.stdin.flush()
            answer = self._line()
            assert answer["number"] == self._number, f"the server answers request {answer['number']} instead of {self._number}"
        except BaseException:  # also the end of a test by its timeout
            self.end(grace_s=0.0)
            raise
        codes: list[int] = answer["codes"]
        return codes

    def end(self, *, grace_s: float = 10.0) -> None:
        """End the server by the end of its input; kill it and its ranks if it still runs after so many seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.close()
            process.wait(grace_s)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()

    def _line(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the server has ended: {self._command}"
        return json.loads(line)
