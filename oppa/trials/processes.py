"""Find processes in the kernel's tables, by ancestor or by tag, and end them.

This module uses the standard library alone and is quick to import, because the shim starts with it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

STUDY_TAG, TUNER_TAG, LAUNCHER_TAG = "OPPA_STUDY", "OPPA_TUNER", "OPPA_LAUNCHER"
"""Environment variables with which every process of oppa is executed. A variable that is set after a fork is not visible from outside."""

_HOSTS_OWN = 0xEFFFFFFC
"""Inode of the namespace of processes that is no container's (include/linux/proc_ns.h)."""
_owns_children = False
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_UNKILLABLE_S = 10.0
"""Seconds after which `end` gives up on a killed process that still waits for a device."""


class Process(NamedTuple):
    """Identifies a process, so that a later one with the same number differs. `started` is in the kernel's ticks since boot."""

    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"


class _Stat(NamedTuple):
    process: Process
    parent: int
    session: int
    living: bool


def adopt_orphans() -> None:
    """Make this process, instead of init, the parent of every descendant whose own parent ends (a *subreaper*)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread of `parent` that started it ends; exit at once if `parent` has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def own_children() -> None:
    """Declare that this process is a program of oppa: it starts all its children itself, so whatever it adopts is an orphan of a trial."""
    global _owns_children
    _owns_children = True


def this_process() -> Process:
    """Return the calling process."""
    return child(os.getpid())


def child(pid: int) -> Process:
    """Return the process with this number, which is the caller or one of its children that it has not reaped."""
    stat = _stat(pid)
    assert stat is not None
    return stat.process


def program(module: str) -> str:
    """Return the code for `python -c` that runs `main()` of one of oppa's modules, in any folder and in an isolated Python."""
    package, _, name = module.rpartition(".")
    return f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); from {package} import {name}; {name}.main()"


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals, such as 35, have none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def host_of_processes() -> str:
    """Return the name of this host, with a number in a container that numbers its own processes: it may share the host's name."""
    with contextlib.suppress(OSError):
        if (number := Path("/proc/self/ns/pid").stat().st_ino) != _HOSTS_OWN:
            return f"{os.uname().nodename}#{number}"
    return os.uname().nodename


def tuner_tag() -> str:
    """Return the tag of this process, `host/pid:started`, which the processes that it starts carry on every host."""
    return f"{host_of_processes()}/{this_process()}"


def is_living(process: Process) -> bool:
    """Return True if exactly this process still runs; a zombie does not run."""
    stat = _stat(process.pid)
    return stat is not None and stat.living and stat.process == process


def descendants(ancestor: int) -> set[Process]:
    """Return the living processes below the process `ancestor`."""
    return _below({ancestor}, list(_processes()))


def adopted(known: set[Process]) -> set[Process]:
    """Return the living processes whose parent this subreaper has become, and all below them.

    They are the children in other sessions than its own, as no process below a shim can join this session. In a user's own program, where
    the user may have started such children, there are none.

    Args:
        known: Children in other sessions that this process has started.
    """
    if not _owns_children:
        return set()
    stats, session = _processes(), os.getsid(0)
    roots = {stat.process for stat in stats if stat.parent == os.getpid() and stat.session != session} - known
    return {stat.process for stat in stats if stat.living and stat.process in roots} | _below({each.pid for each in roots}, stats)


def tagged(matches: Callable[[Mapping[str, str]], bool]) -> set[Process]:
    """Return this user's living processes whose environment matches, and all below them; never the calling process."""
    stats = list(_processes())
    roots = {stat.process for stat in stats if stat.living and matches(_environment(stat.process.pid))}
    return (roots | _below({process.pid for process in roots}, stats)) - {this_process()}


def end(find: Callable[[], set[Process]], grace_s: float) -> set[Process]:
    """End all processes that `find` returns until it returns none, and return all that were found.

    They get SIGTERM, and SIGKILL after `grace_s` seconds. SIGCONT follows SIGTERM, so that a stopped process receives it too.
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
    """Collect the exit status of an ended child, so that it does not remain as a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def _prctl(option: int, value: int) -> None:
    import ctypes  # slow to import, and the command line imports this module

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _send(receivers: set[Process], *numbers: int) -> None:
    """Send signals to exactly these processes, never to later ones with the same numbers."""
    for process in receivers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(process.pid)
            try:
                if is_living(process):  # checked after the handle is open, because the handle stays with one process
                    for number in numbers:
                        signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _below(ancestors: set[int], stats: list[_Stat]) -> set[Process]:
    """Return all living processes below the ancestors, found generation by generation."""
    found: set[Process] = set()
    while generation := {stat for stat in stats if stat.parent in ancestors and stat.process not in found}:
        found |= {stat.process for stat in generation}
        ancestors = {stat.process.pid for stat in generation}
    return {stat.process for stat in stats if stat.living and stat.process in found}


def _processes() -> list[_Stat]:
    stats = (_stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [stat for stat in stats if stat is not None]


def _stat(pid: int) -> _Stat | None:
    """Read the fields of `man 5 proc_pid_stat` after the name, which may contain anything; return None if the process is gone or hidden.

    Under a /proc with `hidepid=1` the kernel hides the processes of other users.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    state, parent, session, threads, started = fields[0], int(fields[1]), int(fields[3]), int(fields[17]), int(fields[19])
    # A first thread that has ended shows as a zombie while other threads of the process run on.
    living = state not in (b"Z", b"X") or threads > 1
    return _Stat(Process(pid, started), parent, session, living)


def _environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was executed with; empty if it is another user's or has ended."""
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return {}
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition("=") for item in os.fsdecode(data).split("\0") if item)
    return {name: value for name, _, value in pairs}
