"""The shim between a tuner and what it starts: nothing below it outlives the tuner, however the tuner dies.

Started as a program, with the standard library alone. It starts one command and waits for the first of three: the tuner asks
(by closing its end of a pipe), the tuner dies, the command ends. Then it ends all its descendants, and itself with the command's
exit code (128 + n where signal n killed it).
"""

import os
import select
import sys
from pathlib import Path

from oppa.trials import processes

_REAP_S = 0.5


def argv(tuner: int, pipe: int, grace_s: float, command: list[str]) -> list[str]:
    """The command line that starts the shim, isolated from whatever the environment does to Python."""
    package = Path(__file__).resolve().parents[2]
    start = f"import sys; sys.path.insert(0, {str(package)!r}); from oppa.trials import shim; shim.main()"
    return [sys.executable, "-I", "-S", "-c", start, str(tuner), str(pipe), str(grace_s), *command]


class _Guarded:
    """The command and whatever is orphaned below us."""

    def __init__(self, command: list[str]) -> None:
        self.pid = os.spawnvp(os.P_NOWAIT, command[0], command)
        self.code = 1

    def reap(self) -> None:
        """Take the exit status of every child that has ended; keep that of the command."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return

    def living(self) -> set[processes.Process]:
        self.reap()
        return processes.descendants(os.getpid())


def main() -> None:
    """Guard the command in `sys.argv` until it, or the tuner, ends."""
    tuner, pipe, grace_s, command = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    processes.adopt_orphans()
    os.set_inheritable(pipe, False)
    guarded = _Guarded(command)
    _wait(tuner, pipe, guarded)
    processes.end(guarded.living, grace_s)
    sys.exit(guarded.code if guarded.code >= 0 else 128 - guarded.code)


def _wait(tuner: int, pipe: int, guarded: _Guarded) -> None:
    """Return when the tuner asks, the tuner is dead, or the command is."""
    try:
        # The tuner itself beside the pipe, whose other end a fork of the tuner may hold open.
        watched = [pipe, os.pidfd_open(guarded.pid), os.pidfd_open(tuner)]
    except ProcessLookupError:
        return
    while os.getppid() == tuner and not select.select(watched, [], [], _REAP_S)[0]:
        guarded.reap()
