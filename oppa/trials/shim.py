"""The shim between a tuner and what it starts: nothing below it outlives the tuner, however the tuner dies.

Started as a program, with the standard library alone. It starts one command and waits for the first of three: the tuner asks
(by closing its end of the line between them), the tuner dies, the command ends (which it tells at once: its exit code, or minus
the signal that killed it). Then it ends all its descendants, and itself.
"""

import contextlib
import os
import select
import sys

from oppa.trials import processes

_REAP_S = 0.5


def argv(tuner: int, line: int, grace_s: float, command: list[str]) -> list[str]:
    """The command line that starts the shim, isolated from whatever the environment does to Python."""
    return [sys.executable, "-I", "-S", "-c", processes.program("oppa.trials.shim"), str(tuner), str(line), str(grace_s), *command]


class _Family:
    """The command, all below it, and whatever is orphaned."""

    def __init__(self, command: list[str]) -> None:
        self.command = os.spawnvp(os.P_NOWAIT, command[0], command)
        self.code: int | None = None

    def reap(self) -> None:
        """Take the exit status of every child that has ended; keep that of the command."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.command:
                    self.code = os.waitstatus_to_exitcode(ended[1])

    def living(self) -> set[processes.Process]:
        self.reap()
        return processes.descendants(os.getpid())


def main() -> None:
    """Guard the command in `sys.argv` until it, or the tuner, ends."""
    tuner, line, grace_s, command = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    processes.adopt_orphans()
    os.set_inheritable(line, False)
    family = _Family(command)
    _wait(tuner, line, family)
    family.reap()
    if family.code is not None:
        with contextlib.suppress(OSError):
            os.write(line, str(family.code).encode())
    processes.end(family.living, grace_s)


def _wait(tuner: int, line: int, family: _Family) -> None:
    """Return when the tuner asks, the tuner is dead, or the command is."""
    try:
        # The tuner itself beside the line, whose other end a fork of the tuner may hold open.
        watched = [line, os.pidfd_open(family.command), os.pidfd_open(tuner)]
    except ProcessLookupError:
        return
    while os.getppid() == tuner and not select.select(watched, [], [], _REAP_S)[0]:
        family.reap()
