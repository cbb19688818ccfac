"""Run a command under a shim (`oppa.trials.shim`), so that neither it nor its descendants outlive this process."""

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from oppa.trials import processes, shim

PATIENCE_S = 2.0
"""Seconds that a shim may take in addition to the grace period."""

_shims: set[processes.Process] = set()
"""The shims of this process that have not been closed."""


class GuardedProcess:
    """Runs a command under a shim, with a unique tag in its environment. Messages call the command `name`.

    The constructor makes this process a subreaper. If the shim is killed, the guarded processes become children of this process, and
    `close` still finds them. In a program of oppa it finds them even if they have cleared their environment.
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
        """Start the command.

        Args:
            log: File to which the output is added; a new one is the owner's alone.
            stdin: A descriptor for the command's input; the command reads nothing unless it is given.
            stdout: A descriptor for the command's output; `log`, which also takes stderr, unless it is given.
        """
        processes.adopt_orphans()
        self._name = name
        self._grace_s = grace_s
        self._before = processes.adopted(known=set())
        self._tag = f"{processes.this_process()}:{os.urandom(4).hex()}"
        self._line, theirs = socket.socketpair()
        with theirs, open(log, "ab", opener=_private) as output:
            self._shim = subprocess.Popen(
                shim.argv(os.getpid(), theirs.fileno(), grace_s, command),
                env={**environment, processes.LAUNCHER_TAG: self._tag},
                pass_fds=(theirs.fileno(), *pass_fds),
                start_new_session=True,
                stdin=stdin,
                stdout=output if stdout is None else stdout,
                stderr=output,
            )
        self._identity = processes.child(self._shim.pid)
        _shims.add(self._identity)

    @classmethod
    def with_pipes(cls, name: str, command: list[str], **how: Any) -> tuple[Self, int, int]:
        """Return a guard whose command has pipes, and our ends of the pipes to its stdin and from its stdout; the caller closes both."""
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
        """Return how the command ended, or how the shim did if it reported nothing; empty while they run."""
        try:
            code = self._line.recv(16, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return ""
        if not code:
            return f"the shim {_words(self._shim.wait())}"
        return f"{self._name} {_words(int(code))}"

    @property
    def succeeded(self) -> bool:
        """Return True if the command has exited with code 0."""
        return self.ended() == f"{self._name} {_words(0)}"

    def end_others(self, spare: int, grace_s: float) -> None:
        """End all descendants of the shim, orphans included, except the process `spare`."""
        processes.end(lambda: {each for each in processes.descendants(self._shim.pid) if each.pid != spare}, grace_s)

    def close(self) -> None:
        """End all processes. The shim ends them; if it was killed or is stopped, this process does."""
        self._line.close()
        try:
            self._shim.wait(self._grace_s + PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._shim.kill()
            self._shim.wait()
        _shims.discard(self._identity)
        for process in processes.end(self._left, self._grace_s):
            processes.reap(process)

    def _left(self) -> set[processes.Process]:
        """Return what a killed shim has left: processes with this guard's tag, and orphans that nobody else's shim guards."""
        tagged = processes.tagged(lambda environment: environment.get(processes.LAUNCHER_TAG) == self._tag)
        if self._shim.returncode == 0:
            return tagged
        return tagged | processes.adopted(known=self._before | _shims)


def _words(code: int) -> str:
    return f"was killed by {processes.signal_name(-code)}" if code < 0 else f"exited with code {code}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
