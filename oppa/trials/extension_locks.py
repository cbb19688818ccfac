"""Remove the locks of torch's C++ extensions that a trial leaves if it is killed while it builds one.

A build holds a lock: a file that exists until the build has ended (torch/utils/file_baton.py). torch never removes the file of a process
that was killed. Every later process that loads the extension would wait for it forever, also outside oppa.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

DIRECTORY = "TORCH_EXTENSIONS_DIR"
LOCK = "lock"
_DEPTHS = (1, 2)
"""Folders between the cache and a lock: the extension's, below that of Python and CUDA unless the variable names the cache."""


def remove_left_locks(environment: Mapping[str, str], *, since: float) -> None:
    """Remove each lock that is not older than a time, and that no process of this host holds.

    Args:
        environment: Variables of the trial, in addition to those of this process.
        since: Seconds since the epoch.
    """
    left = [lock for lock in _locks(_cache(environment)) if _changed(lock) >= since]
    if not left:
        return
    held = set(_open_files())
    for lock in left:
        if str(lock) not in held:
            with contextlib.suppress(OSError):
                lock.unlink()


def _cache(environment: Mapping[str, str]) -> Path:
    """Return the folder in which torch builds extensions (torch/utils/cpp_extension.py, `get_default_build_root`)."""
    known = {**os.environ, **environment}
    caches = known.get("XDG_CACHE_HOME") or Path(known.get("HOME", "~"), ".cache").expanduser()
    return Path(known.get(DIRECTORY) or Path(caches, "torch_extensions")).resolve()


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
