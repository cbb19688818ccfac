"""Processes as the kernel tells them: who descends from whom, who carries which tag, and how they are ended.

The standard library alone, and quick to import: the shim starts with it.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

STUDY_TAG, TUNER_TAG, LAUNCHER_TAG = "OPPA_STUDY", "OPPA_TUNER", "OPPA_LAUNCHER"
"""Variables in the environment that every process of ours is executed with (one set after a fork is not visible from outside)."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_UNKILLABLE_S = 10.0
"""How long a killed process may stay, waiting for a device, before we stop looking at it."""


class Process(NamedTuple):
    """A process, never mistaken for a later one with the same number. `started` counts the kernel's ticks since boot."""

    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"


class _Stat(NamedTuple):
    process: Process
    parent: int
    living: bool


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends, instead of init (a *subreaper*)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread of `parent` that started it ends, whatever ends it; at once if it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def this_process() -> Process:
    """The process that runs this line."""
    stat = _stat(os.getpid())
    assert stat is not None
    return stat.process


def program(module: str) -> str:
    """What `python -c` takes to run `main()` of one of our modules, wherever and however isolated that Python is started."""
    package, _, name = module.rpartition(".")
    return f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); from {package} import {name}; {name}.main()"


def tuner_tag() -> str:
    """This process as the processes that it starts name it, on whichever host they are."""
    return f"{os.uname().nodename}/{this_process()}"


def is_living(process: Process) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.living and stat.process == process


def descendants(ancestor: int) -> set[Process]:
    """Living processes below the process `ancestor`."""
    return _below({ancestor}, list(_processes()))


def tagged(matches: Callable[[Mapping[str, str]], bool]) -> set[Process]:
    """Living processes of this user whose environment matches, and all below them; never this process itself."""
    stats = list(_processes())
    roots = {stat.process for stat in stats if stat.living and matches(_environment(stat.process.pid))}
    return (roots | _below({process.pid for process in roots}, stats)) - {this_process()}


def end(find: Callable[[], set[Process]], grace_s: float) -> set[Process]:
    """Ask with SIGTERM all that `find` finds, kill after `grace_s`, until it finds none; returns who was there.

    SIGCONT follows SIGTERM, so that a stopped process hears it too.
    """
    seen: set[Process] = set()
    kill_at = time.monotonic() + grace_s
    while (living := find()) and time.monotonic() < kill_at + _UNKILLABLE_S:
        if time.monotonic() < kill_at:
            _send(living - seen, signal.SIGTERM, signal.SIGCONT)
        else:
            _send(living, signal.SIGKILL)
        seen |= living
        time.sleep(_POLL_S)
    return seen


def reap(process: Process) -> None:
    """Take the exit status of an ended child of ours, so that it does not stay as a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def _send(receivers: set[Process], *numbers: int) -> None:
    """Signal exactly these processes, never later ones with the same numbers."""
    for process in receivers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(process.pid)
            try:
                if is_living(process):  # asked once the handle is held, which stays with the process that it then was
                    for number in numbers:
                        signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _below(ancestors: set[int], stats: list[_Stat]) -> set[Process]:
    """All below the ancestors, found generation by generation."""
    found: set[Process] = set()
    while generation := {stat for stat in stats if stat.parent in ancestors and stat.process not in found}:
        found |= {stat.process for stat in generation}
        ancestors = {stat.process.pid for stat in generation}
    return {stat.process for stat in stats if stat.living and stat.process in found}


def _processes() -> list[_Stat]:
    stats = (_stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [stat for stat in stats if stat is not None]


def _stat(pid: int) -> _Stat | None:
    """Fields of `man 5 proc_pid_stat`, counted from behind the name, which may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, threads, started = fields[0], int(fields[1]), int(fields[17]), int(fields[19])
    # A first thread that has ended shows as a zombie while other threads of the process run on.
    living = state not in (b"Z", b"X") or threads > 1
    return _Stat(Process(pid, started), parent, living)


def _environment(pid: int) -> dict[str, str]:
    """What the process was executed with; empty for another user's."""
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return {}
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition("=") for item in os.fsdecode(data).split("\0") if item)
    return {name: value for name, _, value in pairs}
