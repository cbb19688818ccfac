"""Remove the locks of torch's C++ extensions that a trial leaves if it is killed while it builds one.

A build holds a lock: a file that exists until the build has ended (torch/utils/file_baton.py). torch never removes the file of a process
that was killed. Every later process that loads the extension would wait for it forever, also outside oppa.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oppa.problem.stated_words import folder_of, program_at
from oppa.problem.templates import names_in, without_escapes

DIRECTORY = "TORCH_EXTENSIONS_DIR"
LOCK = "lock"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_DEPTHS = (1, 2)
"""Folders between the cache and a lock: the extension's, below that of Python and CUDA unless the variable names the cache."""


def remove_left_locks(environment: Mapping[str, str], argv: Sequence[str] = (), *, since: float) -> None:
    """Remove each lock that is not older than a time, and that no process of this host holds.

    Args:
        environment: Variables of the trial, in addition to those of this process.
        argv: The trial's launch line, whose own assignments count first.
        since: Seconds since the epoch.
    """
    left = [lock for lock in _locks(_cache({**environment, **_assigned(argv)}, folder_of(argv))) if _changed(lock) >= since]
    if not left:
        return
    held = set(_open_files())
    for lock in left:
        if str(lock) not in held:
            with contextlib.suppress(OSError):
                lock.unlink()


def _assigned(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables that a launch line assigns in front of its program; a value that differs between trials is not known."""
    pairs = [word.partition("=") for word in argv[: max(program_at(argv), 0)] if _ASSIGNMENT.match(word)]
    return {name: without_escapes(value) for name, _, value in pairs if not any(names_in(value))}


def _cache(environment: Mapping[str, str], folder: Path) -> Path:
    """Return the folder in which torch builds extensions (torch/utils/cpp_extension.py, `get_default_build_root`)."""
    known = {**os.environ, **environment}
    caches = known.get("XDG_CACHE_HOME") or Path(known.get("HOME", "~"), ".cache").expanduser()
    return (folder / (known.get(DIRECTORY) or Path(caches, "torch_extensions"))).resolve()


def _locks(cache: Path) -> Iterator[Path]:
    for depth in _DEPTHS:
        yield from cache.glob("/".join(["*"] * depth + [LOCK]))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _open_files() -> Iterator[str]:
    """Yield the files that processes have open, as far as their owner permits to read that."""
    import psutil  # 20 ms, and seldom needed

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            yield from (each.path for each in process.open_files())
