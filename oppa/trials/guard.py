"""The tuner's side of the shim: a command, and all below it, that cannot outlive us."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from oppa.trials import processes, shim


class Guard:
    """A command under a shim, with a tag that is its own.

    Makes this process a subreaper: should the shim be killed, what it guarded becomes our child, and `close` still finds it.
    """

    def __init__(self, command: list[str], *, environment: Mapping[str, str], grace_s: float, pass_fds: Iterable[int], log: Path) -> None:
        processes.adopt_orphans()
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
        """How the shim ended, and with it the command; empty while it runs."""
        code = self._shim.poll()
        if code is None:
            return ""
        return f"the shim was killed by signal {-code}" if code < 0 else f"the launcher's process exited with code {code}"

    def end_others(self, spare: int, grace_s: float) -> set[processes.Process]:
        """End all below the command's process `spare`, and all that was orphaned; returns who was there."""
        return processes.end(lambda: {each for each in processes.descendants(self._shim.pid) if each.pid != spare}, grace_s)

    def close(self) -> None:
        """End everything. The shim does it; what it left, if it was killed, we do."""
        os.close(self._pipe)
        self._shim.wait()
        left = processes.end(self._tagged, self._grace_s)
        for process in left:
            processes.reap(process)

    def _tagged(self) -> set[processes.Process]:
        return processes.tagged(lambda environment: environment.get(processes.LAUNCHER_TAG) == self.tag)
