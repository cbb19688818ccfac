"""Allow one trial at a time on a host's devices, because two trials that share devices slow each other down.

All tuners of a user on a host share a lock on a file. The kernel releases it when its holder ends, whatever the cause. The file lies in a
folder that only the user can enter, as anybody could hold the lock on a file that they can open.
"""

import contextlib
import fcntl
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from oppa import private_files
from oppa.errors import OppaError, StudyError
from oppa.problem.cluster import Cluster
from oppa.trials.monitor import writable

RUNTIME = Path("/run/user")
"""Parent of the folders that systemd keeps for users who are logged in."""
_POLL_S = 0.015
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def exclusive(cluster: Cluster, on_tick: Callable[[], None]) -> Iterator[None]:
    """Hold this host's devices of the cluster's kind (CUDA or CPU); while another trial holds them, wait and call `on_tick`.

    Raises:
        StudyError: the lock's file cannot be made or locked.
    """
    kind = "cuda" if cluster.on_cuda else "cpu"
    path = private_folder() / f"{platform.node()}-{kind}.lock"
    with writable(path):
        # Programs that we execute do not inherit it (O_CLOEXEC, Python's default): a rank that outlives us must not hold the lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _acquire(descriptor, on_tick)
        yield
    finally:
        os.close(descriptor)


def private_folder() -> Path:
    """Make and return the user's own folder for what the tuners of a host share.

    It is in XDG_RUNTIME_DIR. A batch job lacks that variable. Its folder is in `/run/user/UID`, the usual value, or else in the user's
    state folder.

    Raises:
        StudyError: the folder cannot be made, belongs to another user, or can be entered by others.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or RUNTIME / str(os.getuid()))
    folder = runtime / "oppa" if runtime.is_dir() else _state_folder()
    try:
        private_files.private_folder(folder)
    except OppaError as error:
        hint = f"remove it, run `chmod 700 {folder}`, or set XDG_RUNTIME_DIR to a folder of yours"
        raise StudyError(f"`{folder}` is not a folder of yours alone: {error.message}", hint=hint) from error
    return folder


def _state_folder() -> Path:
    """Return oppa's folder in the user's state folder; raises StudyError if the user has no home."""
    with contextlib.suppress(RuntimeError):
        if (folder := platformdirs.user_state_path("oppa")).is_absolute():  # earlier versions leave the tilde of a missing home
            return folder
    raise StudyError("the user has no home, in which the lock on the devices lies", hint="set XDG_RUNTIME_DIR or HOME to a folder of yours")


def _acquire(descriptor: int, on_tick: Callable[[], None]) -> None:
    warned = False
    while not _try_acquire(descriptor):
        if not warned:
            _log.warning("waiting for another tuner's trial on this host's devices; `--set limits.device_lock=false` does not wait")
            warned = True
        on_tick()
        time.sleep(_POLL_S)


def _try_acquire(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a network file system without locks
        message = f"the lock on the devices cannot be taken: {error.strerror}"
        raise StudyError(message, hint="set XDG_RUNTIME_DIR to a folder on this host") from error
    return True
