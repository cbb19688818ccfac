"""Allow one trial at a time on a host's devices, because two trials that share devices slow each other down.

All tuners of a user share a lock on a file. The kernel releases it when its holder ends, whatever the cause.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from oppa.problem.cluster import Cluster
from oppa.trials.monitor import writable

_POLL_S = 0.015
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def exclusive(cluster: Cluster, on_tick: Callable[[], None]) -> Iterator[None]:
    """Hold this host's devices of the cluster's kind (CUDA or CPU); while another trial holds them, wait and call `on_tick`.

    Raises:
        StudyError: the lock's file cannot be made.
    """
    kind = "cuda" if cluster.on_cuda else "cpu"
    path = Path(tempfile.gettempdir(), f"oppa-{os.getuid()}-{kind}.lock")
    with writable(path):
        # Programs that we execute do not inherit it (O_CLOEXEC, Python's default): a rank that outlives us must not hold the lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _acquire(descriptor, on_tick)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, on_tick: Callable[[], None]) -> None:
    warned = False
    while not _try_acquire(descriptor):
        if not warned:
            _log.warning("waiting for another tuner's trial on the same devices to end")
            warned = True
        on_tick()
        time.sleep(_POLL_S)


def _try_acquire(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
