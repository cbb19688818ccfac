"""The tuner's side of the shim: a command, and all below it, that cannot outlive us."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from oppa.trials import processes, shim

PATIENCE_S = 2.0
"""How much longer than the grace a shim may take."""


class Guard:
    """A command under a shim, with a tag that is its own. `name` is what messages call the command.

    Makes this process a subreaper: should the shim be killed, what it guarded becomes our child, and `close` still finds it.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        environment: Mapping[str, str],
        grace_s: float,
        log: Path,
        pass_fds: Iterable[int] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> None:
        """`stdin`, `stdout`: descriptors for the command; without them it reads nothing and prints to `log`."""
        processes.adopt_orphans()
        self._name = name
        self._grace_s = grace_s
        self._tag = f"{processes.this_process()}:{os.urandom(4).hex()}"
        self._line, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self._shim = subprocess.Popen(
                shim.argv(os.getpid(), theirs.fileno(), grace_s, command),
                env={**environment, processes.LAUNCHER_TAG: self._tag},
                pass_fds=(theirs.fileno(), *pass_fds),
                start_new_session=True,
                stdin=stdin,
                stdout=output if stdout is None else stdout,
                stderr=output,
            )

    @classmethod
    def with_pipes(cls, name: str, command: list[str], **how: Any) -> tuple[Self, int, int]:
        """The same with pipes to the command's stdin and from its stdout; our ends of them, in this order, are the caller's to close."""
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        try:
            return cls(name, command, stdin=theirs_in, stdout=theirs_out, **how), ours_in, ours_out
        except BaseException:
            os.close(ours_in)
            os.close(ours_out)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def ended(self) -> str:
        """How the command ended, or the shim; empty while they run."""
        try:
            told = self._line.recv(16, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return ""
        if not told:
            return f"the shim {_words(self._shim.wait())}"
        return f"{self._name} {_words(int(told))}"

    @property
    def succeeded(self) -> bool:
        """Whether the command has exited with code 0."""
        return self.ended() == f"{self._name} {_words(0)}"

    def end_others(self, spare: int, grace_s: float) -> None:
        """End all below the command's process `spare`, and all that was orphaned."""
        processes.end(lambda: {each for each in processes.descendants(self._shim.pid) if each.pid != spare}, grace_s)

    def close(self) -> None:
        """End everything. The shim does it; what it cannot, because it was killed or is stopped, we do."""
        self._line.close()
        try:
            self._shim.wait(self._grace_s + PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._shim.kill()
            self._shim.wait()
        for process in processes.end(self._tagged, self._grace_s):
            processes.reap(process)

    def _tagged(self) -> set[processes.Process]:
        return processes.tagged(lambda environment: environment.get(processes.LAUNCHER_TAG) == self._tag)


def _words(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
