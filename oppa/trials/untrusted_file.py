"""Read files that a trial's own processes can write, replace or fill: only regular files, through no link, without waiting, and bounded.

A program under test is not trusted. In place of a file it may leave a FIFO, which blocks a reader; a link, which shows another file; a
directory; or more bytes than fit in memory.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oppa.errors import MeasurementError


@contextlib.contextmanager
def opened(path: Path, *, writing: bool = False) -> Iterator[BinaryIO | None]:
    """Yield the open file, or None if there is none.

    Args:
        path: File in the trial's folder.
        writing: Open it for reading and appending.

    Raises:
        MeasurementError: it is no regular file, or cannot be opened.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_RDWR | os.O_APPEND if writing else os.O_RDONLY)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        what = "has become a link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise MeasurementError(f"`{path.name}` {what}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MeasurementError(f"`{path.name}` is no longer a regular file")
    with os.fdopen(descriptor, "a+b" if writing else "rb") as file:
        yield file


def read(path: Path, *, limit_bytes: int) -> bytes | None:
    """Return the contents of a small file, or None if there is none.

    Raises:
        MeasurementError: it is no regular file, cannot be opened, or has more than `limit_bytes`.
    """
    with opened(path) as file:
        if file is None:
            return None
        body = file.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise MeasurementError(f"`{path.name}` is longer than {limit_bytes} bytes")
    return body
