"""One command per rank, each on its emulated host: what they print is heard line by line, and none outlives the first that fails.

A shim above each rank ends it, and all that it started, when we ask or are dead.
"""

import functools
import math
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self

from oppa.errors import EnvironmentLackingError
from oppa.places.emulated_host import INTERFACE, EmulatedHost
from oppa.places.netlab import Netlab
from oppa.trials import processes, shim
from oppa.trials.guard import PATIENCE_S
from oppa.trials.quota import CpuGroups

MASTER_PORT = 29500
"""Free, because the hosts are new, and no port that connections get by themselves."""

_LOOK_S = 0.5
_LINE_BYTES = 1 << 16

Hear = Callable[[int, int, bytes], None]
"""What is told a line: of which rank, and of which stream (1 stdout, 2 stderr)."""


class EmulatedRanks:
    """Ranks on the hosts of a netlab, in order and as many on each, until `close`.

    Raises:
        OSError: if a process is refused. Nothing of them is left.
    """

    def __init__(self, netlab: Netlab, command: list[str], *, ranks_per_host: int, groups: CpuGroups | None, grace_s: float) -> None:
        processes.adopt_orphans()  # should a shim be killed, what it guarded becomes our child
        self._netlab = netlab
        self._grace_s = grace_s
        self._tag = f"{processes.this_process()}:{os.urandom(4).hex()}"
        self._ranks: list[_Rank] = []
        try:
            for rank in range(len(netlab.hosts) * ranks_per_host):
                variables = {**variables_of(rank, netlab.hosts, ranks_per_host), processes.LAUNCHER_TAG: self._tag}
                host, group = netlab.hosts[rank // ranks_per_host], groups.ranks[rank] if groups else None
                self._ranks.append(_Rank(command, host=host, environment=variables, group=group, grace_s=grace_s))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, hear: Hear) -> int:
        """0 once all have ended well; else how the first that did not ended, once all are gone: its exit code, or minus a signal.

        Raises:
            EnvironmentLackingError: if somebody ended the link.
        """
        failed, until_s = 0, math.inf
        with selectors.DefaultSelector() as selector:
            for number, rank in enumerate(self._ranks):
                rank.register(selector, functools.partial(hear, number))
            while selector.get_map() and time.monotonic() < until_s:
                for key, _ in selector.select(_LOOK_S):
                    if not key.data():
                        selector.unregister(key.fileobj)
                    if not failed and (failed := next((rank.code for rank in self._ranks if rank.code), 0)):
                        until_s = time.monotonic() + self._grace_s + PATIENCE_S
                        self._ask_to_end()
                if self._netlab.ended():
                    raise EnvironmentLackingError("the relay of the link was ended", hint="is the machine out of memory? `dmesg` tells")
        return failed

    def close(self) -> None:
        """End everything. The shims do it; what they cannot, because they were killed or are stopped, we do."""
        self._ask_to_end()
        deadline_s = time.monotonic() + self._grace_s + PATIENCE_S
        for rank in self._ranks:
            rank.close(deadline_s)
        for process in processes.end(self._tagged, self._grace_s):
            processes.reap(process)

    def _ask_to_end(self) -> None:
        for rank in self._ranks:
            rank.ask_to_end()

    def _tagged(self) -> set[processes.Process]:
        return processes.tagged(lambda environment: environment.get(processes.LAUNCHER_TAG) == self._tag)


def variables_of(rank: int, hosts: tuple[EmulatedHost, ...], ranks_per_host: int) -> dict[str, str]:
    """The environment of a rank: torchrun's variables, our device for gloo and NCCL, and one thread unless the user has said."""
    group, local = divmod(rank, ranks_per_host)
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(group),
        "WORLD_SIZE": str(len(hosts) * ranks_per_host),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
    }


class _Rank:
    """A command under a shim, on a host. `code` is how it ended, once it has: its exit code, or minus the signal that killed it."""

    def __init__(
        self, command: list[str], *, host: EmulatedHost, environment: Mapping[str, str], group: Path | None, grace_s: float
    ) -> None:
        self.code: int | None = None
        self._line, theirs = socket.socketpair()
        with theirs, host.entered():
            self._shim = subprocess.Popen(
                shim.argv(os.getpid(), theirs.fileno(), grace_s, command),
                env=environment,
                pass_fds=[theirs.fileno()],
                preexec_fn=functools.partial(_join, group) if group else None,
                start_new_session=True,  # Ctrl-C is for us, who then end the ranks
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def register(self, selector: selectors.BaseSelector, hear: Callable[[int, bytes], None]) -> None:
        """Let a selector watch it: call the key's data when there is something to read; it is false once there will be no more."""
        assert self._shim.stdout is not None and self._shim.stderr is not None
        selector.register(self._line, selectors.EVENT_READ, self._read_code)
        for number, pipe in enumerate((self._shim.stdout, self._shim.stderr), 1):
            selector.register(pipe, selectors.EVENT_READ, _Lines(pipe, functools.partial(hear, number)).read)

    def ask_to_end(self) -> None:
        """Ask its shim to end it, and all below it."""
        self._line.shutdown(socket.SHUT_WR)

    def close(self, deadline_s: float) -> None:
        """Wait for its shim, and no longer than until then."""
        try:
            self._shim.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._shim.kill()
            self._shim.wait()
        self._line.close()
        for pipe in (self._shim.stdout, self._shim.stderr):
            assert pipe is not None
            pipe.close()

    def _read_code(self) -> bool:
        told = self._line.recv(16)
        if told:
            self.code = int(told)
        elif self.code is None:  # its shim ended without a word: because we asked it to, or because it was killed
            self.code = self._shim.wait()
        return bool(told)


class _Lines:
    """What comes out of a pipe, line by line; what is too long for a line is cut."""

    def __init__(self, pipe: IO[bytes], hear: Callable[[bytes], None]) -> None:
        self._pipe = pipe
        self._hear = hear
        self._rest = b""

    def read(self) -> bool:
        """Tell the lines that have come; false at the end of the pipe."""
        read = os.read(self._pipe.fileno(), _LINE_BYTES)
        *lines, self._rest = (self._rest + read).split(b"\n")
        if self._rest and (not read or len(self._rest) > _LINE_BYTES):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._hear(line + b"\n")
        return bool(read)


def _join(group: Path) -> None:
    """Put the process that runs this into a control group."""
    (group / "cgroup.procs").write_text("0")
