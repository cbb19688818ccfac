"""Run a command between a tuner and its processes, so that no process below outlives the tuner, however the tuner dies.

The shim is started as a program and uses the standard library alone. It starts one command and waits for the first of three events:

- The tuner closes its end of the line between them.
- The tuner dies.
- The command ends. The shim then reports the exit code at once, or minus the signal that killed the command.

Then it ends all its descendants, and itself.
"""

import contextlib
import os
import select
import sys

from oppa.trials import processes

_REAP_S = 0.5


def argv(tuner: int, line: int, grace_s: float, command: list[str]) -> list[str]:
    """Return the command line that starts the shim, isolated from environment variables that change Python."""
    return [sys.executable, "-I", "-S", "-c", processes.program("oppa.trials.shim"), str(tuner), str(line), str(grace_s), *command]


class _Family:
    """Watches the command, all processes below it, and orphans."""

    def __init__(self, command: list[str]) -> None:
        self.command = os.spawnvp(os.P_NOWAIT, command[0], command)
        self.code: int | None = None

    def reap(self) -> None:
        """Collect the exit status of every child that has ended, and keep that of the command."""
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
    """Return when the tuner closes its end of the line, the tuner is dead, or the command has ended."""
    try:
        # The tuner's process is watched as well as the line, because a fork of the tuner may hold the line's other end open.
        watched = [line, os.pidfd_open(family.command), os.pidfd_open(tuner)]
    except ProcessLookupError:
        return
    while os.getppid() == tuner and not select.select(watched, [], [], _REAP_S)[0]:
        family.reap()
