"""Read files that a trial's own processes can write, replace or fill: only regular files, through no link, without waiting, and bounded.

A program under test is not trusted. In place of a file it may leave a FIFO, which blocks a reader, or a link, which shows another file. It
may also leave a directory, or more bytes than fit in memory.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oppa.errors import MeasurementError
from oppa.regular_file import open_regular


@contextlib.contextmanager
def opened(path: Path, *, writing: bool = False) -> Iterator[BinaryIO | None]:
    """Yield the open file, or None if there is none.

    Args:
        path: File in the trial's folder.
        writing: Open it for reading and appending.

    Raises:
        MeasurementError: it is no regular file, or cannot be opened.
    """
    try:
        file = open_regular(path, links=False, writing=writing)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        what = {errno.ELOOP: "has become a link", errno.EINVAL: "is no longer a regular file"}
        raise MeasurementError(f"`{path.name}` {what.get(error.errno or 0, f'cannot be read: {error.strerror}')}") from error
    with file:
        yield file


def read_from(path: Path, offset: int, *, limit_bytes: int) -> bytes:
    """Return at most `limit_bytes` that follow an offset, in bytes; nothing if the file ends there, or is missing.

    The file is opened anew, as network file systems tell only then how long it is.

    Raises:
        MeasurementError: it is no regular file, or cannot be opened.
    """
    with opened(path) as file:
        if file is None:
            return b""
        ahead = os.fstat(file.fileno()).st_size - offset
        return os.pread(file.fileno(), min(ahead, limit_bytes), offset) if ahead > 0 else b""


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
