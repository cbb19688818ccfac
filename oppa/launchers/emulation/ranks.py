"""Run one command per rank on emulated hosts: forward its output line by line, and end all ranks once one has failed.

Each rank runs under a shim. The shim ends the rank and all its descendants when this process requests it or dies.
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
from oppa.launchers.emulation.host import INTERFACE, EmulatedHost
from oppa.launchers.emulation.netlab import Netlab
from oppa.trials import processes, shim
from oppa.trials.cgroups import CpuGroups
from oppa.trials.guarded_process import PATIENCE_S

MASTER_PORT = 29500
"""Port of the rendezvous. It is free, as the hosts are new and it is outside the range of ephemeral ports."""

_LOOK_S = 0.5
_LINE_BYTES = 1 << 16

Hear = Callable[[int, int, bytes], None]
"""Receives a line of output, with its rank and its stream (1 stdout, 2 stderr)."""


class EmulatedRanks:
    """Runs ranks on the hosts of a netlab, `ranks_per_host` on each and in order, until `close`.

    Raises:
        OSError: a process cannot be started. No rank is left.
    """

    def __init__(self, netlab: Netlab, command: list[str], *, ranks_per_host: int, groups: CpuGroups | None, grace_s: float) -> None:
        processes.adopt_orphans()  # so that the descendants of a killed shim become our children
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
        """Return 0 once all ranks have ended normally. Otherwise return the exit code of the first that failed, or minus its signal.

        Once a rank has failed, all others are ended before this returns.

        Raises:
            EnvironmentLackingError: the relay of the link was ended.
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
                    raise EnvironmentLackingError(
                        "the relay of the link was ended", hint="check with `dmesg` whether the machine is out of memory"
                    )
        return failed

    def close(self) -> None:
        """End all ranks through their shims. If a shim was killed or is stopped, this process ends its remaining processes."""
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
    """Return the environment of a rank: torchrun's variables, the TUN device for gloo and NCCL, and one thread unless the user sets it."""
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
    """Runs a command under a shim on an emulated host. `code` is its exit code, or minus the signal that killed it; None while it runs."""

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
                start_new_session=True,  # Ctrl-C reaches this process, which then ends the ranks
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def register(self, selector: selectors.BaseSelector, hear: Callable[[int, bytes], None]) -> None:
        """Register the rank's files with a selector. The data of each key is a function that reads, and returns False at the end."""
        assert self._shim.stdout is not None and self._shim.stderr is not None
        selector.register(self._line, selectors.EVENT_READ, self._read_code)
        for number, pipe in enumerate((self._shim.stdout, self._shim.stderr), 1):
            selector.register(pipe, selectors.EVENT_READ, _Lines(pipe, functools.partial(hear, number)).read)

    def ask_to_end(self) -> None:
        """Request the shim to end the rank and all its descendants."""
        self._line.shutdown(socket.SHUT_WR)

    def close(self, deadline_s: float) -> None:
        """Wait for the shim until the deadline, then kill it."""
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
        received = self._line.recv(16)
        if received:
            self.code = int(received)
        elif self.code is None:  # the shim ended without a report: on request, or because it was killed
            self.code = self._shim.wait()
        return bool(received)


class _Lines:
    """Splits the output of a pipe into lines, and cuts lines that are too long."""

    def __init__(self, pipe: IO[bytes], hear: Callable[[bytes], None]) -> None:
        self._pipe = pipe
        self._hear = hear
        self._rest = b""

    def read(self) -> bool:
        """Read once and forward the complete lines; return False at the end of the pipe."""
        read = os.read(self._pipe.fileno(), _LINE_BYTES)
        *lines, self._rest = (self._rest + read).split(b"\n")
        if self._rest and (not read or len(self._rest) > _LINE_BYTES):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._hear(line + b"\n")
        return bool(read)


def _join(group: Path) -> None:
    """Move the calling process into a control group."""
    (group / "cgroup.procs").write_text("0")
