"""The tuner's side of the shim: a command, and all below it, that cannot outlive us."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from oppa.trials import processes, shim

PATIENCE_S = 2.0
"""How much longer than the grace a shim may take."""


class Guard:
    """A command under a shim, with a tag that is its own. `name` is what messages call the command.

    Makes this process a subreaper: should the shim be killed, what it guarded becomes our child, and `close` still finds it.
    """

    def __init__(
        self, name: str, command: list[str], *, environment: Mapping[str, str], grace_s: float, pass_fds: Iterable[int], log: Path
    ) -> None:
        processes.adopt_orphans()
        self._name = name
        self._grace_s = grace_s
        self.tag = f"{processes.this_process()}:{os.urandom(4).hex()}"
        theirs, self._pipe = os.pipe()
        try:
            with log.open("ab") as output:
                self._shim = subprocess.Popen(
                    shim.argv(os.getpid(), theirs, grace_s, command),
                    env={**environment, processes.LAUNCHER_TAG: self.tag},
                    pass_fds=(theirs, *pass_fds),
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
        finally:
            os.close(theirs)

    def ended(self) -> str:
        """How the command ended, or the shim; empty while they run."""
        code = self._shim.poll()
        if code is None:
            return ""
        if code < 0:
            return f"the shim was killed by {signal.Signals(-code).name}"
        return f"{self._name} was killed by {signal.Signals(code - 128).name}" if code > 128 else f"{self._name} exited with code {code}"

    def end_others(self, spare: int, grace_s: float) -> set[processes.Process]:
        """End all below the command's process `spare`, and all that was orphaned; returns who was there."""
        return processes.end(lambda: {each for each in processes.descendants(self._shim.pid) if each.pid != spare}, grace_s)

    def close(self) -> None:
        """End everything. The shim does it; what it cannot, because it was killed or is stopped, we do."""
        os.close(self._pipe)
        try:
            self._shim.wait(self._grace_s + PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._shim.kill()
            self._shim.wait()
        for process in processes.end(self._tagged, self._grace_s):
            processes.reap(process)

    def _tagged(self) -> set[processes.Process]:
        return processes.tagged(lambda environment: environment.get(processes.LAUNCHER_TAG) == self.tag)
