"""Remove the locks of torch's C++ extensions that a trial leaves if it is killed while it builds one.

A build holds a lock: a file that exists until the build has ended (torch/utils/file_baton.py). torch never removes the file of a process
that was killed. Every later process that loads the extension would wait for it forever, also outside oppa. A process of another host may
hold a lock on a network file system. There only those are removed that a process of this host held at the end of the trial.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oppa.problem.stated_words import folder_of, program_at
from oppa.problem.templates import names_in, without_escapes
from oppa.trials import file_systems

DIRECTORY = "TORCH_EXTENSIONS_DIR"
LOCK = "lock"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_DEPTHS = (1, 2)
"""Folders between the cache and a lock: the extension's, below that of Python and CUDA unless the variable names the cache."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Lock:
    """Identifies a lock; a later one of the same path is another lock."""

    path: str
    inode: int
    made_ns: int


class ExtensionLocks:
    """Removes the locks that the processes of a trial leave."""

    def __init__(self, environment: Mapping[str, str], argv: Sequence[str] = (), *, since: float) -> None:
        """Find the cache of a trial.

        Args:
            environment: Variables of the trial, in addition to those of this process.
            argv: The trial's launch line, whose own assignments count first.
            since: Seconds since the epoch; an older lock is not the trial's.
        """
        self._cache = _cache({**environment, **_assigned(argv)}, folder_of(argv))
        self._since = since
        self._held: set[_Lock] = set()

    def note(self) -> None:
        """Note the locks that processes of this host hold, before those of the trial are ended."""
        locks = self._locks()
        if locks and self._is_shared():
            files = set(_open_files())
            self._held = {lock for lock in locks if lock.path in files}

    def remove(self) -> None:
        """Remove the locks of the trial that no process of this host holds any more."""
        left = self._locks()
        if left and self._is_shared():
            left &= self._held
        if not left:
            return
        files = set(_open_files())
        for lock in (lock for lock in left if lock.path not in files):
            with contextlib.suppress(OSError):
                Path(lock.path).unlink()

    def _is_shared(self) -> bool:
        return file_systems.is_on_network(self._cache, file_systems.MOUNTS)

    def _locks(self) -> set[_Lock]:
        """Return the locks in the cache that are not older than the trial; none if the cache cannot be read."""
        found = set()
        with contextlib.suppress(OSError):
            for path in (path for depth in _DEPTHS for path in self._cache.glob("/".join(["*"] * depth + [LOCK]))):
                with contextlib.suppress(FileNotFoundError):  # its holder has released it
                    state = path.stat()
                    if state.st_mtime >= self._since:
                        found.add(_Lock(path=str(path), inode=state.st_ino, made_ns=state.st_mtime_ns))
        return found


def _assigned(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables that a launch line assigns in front of its program; a value that differs between trials is not known."""
    pairs = [word.partition("=") for word in argv[: max(program_at(argv), 0)] if _ASSIGNMENT.match(word)]
    return {name: without_escapes(value) for name, _, value in pairs if not any(names_in(value))}


def _cache(environment: Mapping[str, str], folder: Path) -> Path:
    """Return the folder in which torch builds extensions (torch/utils/cpp_extension.py, `get_default_build_root`)."""
    known = {**os.environ, **environment}
    caches = known.get("XDG_CACHE_HOME") or Path(known.get("HOME") or os.path.expanduser("~"), ".cache")  # noqa: PTH111 (as torch does)
    return (folder / (known.get(DIRECTORY) or Path(caches, "torch_extensions"))).resolve()


def _open_files() -> Iterator[str]:
    """Yield the files that processes have open, as far as their owner permits to read that."""
    import psutil  # 20 ms, and seldom needed

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            yield from (each.path for each in process.open_files())
