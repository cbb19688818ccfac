"""Read files that a trial's own processes can write, replace or fill: only regular files, through no link, without waiting, and bounded.

A program under test is not trusted. In place of a file it may leave a FIFO, which blocks a reader, or a link, which shows another file. It
may also leave a directory, or more bytes than fit in memory.

A file system may refuse for a moment what it grants later, as a network file system does. `insist` tries again, as `oppa_client` does.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from oppa.errors import MeasurementError
from oppa.regular_file import open_regular

PATIENCE_S, RETRY_S = 60.0, 0.1
"""Seconds for which `insist` tries again, and the seconds between two tries."""
PASSING = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "ETIMEDOUT", "EAGAIN", "EBUSY", "ENOMEM", "EMFILE", "ENFILE", "EREMOTEIO", "ENOSPC", "EDQUOT")
    if hasattr(errno, name)
)
"""Errors that may pass; any other one, as a missing right, has a cause that stays."""

_Value = TypeVar("_Value")


def insist(access: Callable[[], _Value]) -> _Value:
    """Return what an access to files returns; try it again while it raises an OSError that may pass, for at most `PATIENCE_S`.

    Raises:
        OSError: the error stays.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return access()
        except OSError as error:
            if error.errno not in PASSING or time.monotonic() >= until_s:
                raise
        time.sleep(RETRY_S)


@contextlib.contextmanager
def opened(path: Path, *, writing: bool = False) -> Iterator[BinaryIO | None]:
    """Yield the open file, or None if there is none.

    Args:
        path: File in the trial's folder.
        writing: Open it for reading and appending.

    Raises:
        MeasurementError: it is no regular file, or cannot be opened, read or written.
    """
    with _explained(path), _opened(path, writing=writing) as file:
        yield file


def read_from(path: Path, offset: int, *, limit_bytes: int) -> bytes:
    """Return at most `limit_bytes` that follow an offset, in bytes; nothing if the file ends there, or is missing.

    The file is opened anew, as network file systems report only then how long it is.

    Raises:
        MeasurementError: it is no regular file, or cannot be read, for `PATIENCE_S` if that may pass.
    """

    def following() -> bytes:
        with _opened(path) as file:
            if file is None:
                return b""
            ahead = os.fstat(file.fileno()).st_size - offset
            return os.pread(file.fileno(), min(ahead, limit_bytes), offset) if ahead > 0 else b""

    with _explained(path):
        return insist(following)


def read(path: Path, *, limit_bytes: int) -> bytes | None:
    """Return the contents of a small file, or None if there is none.

    Raises:
        MeasurementError: it is no regular file, has more than `limit_bytes`, or cannot be read, for `PATIENCE_S` if that may pass.
    """

    def whole() -> bytes | None:
        with _opened(path) as file:
            return None if file is None else file.read(limit_bytes + 1)

    with _explained(path):
        body = insist(whole)
    if body is not None and len(body) > limit_bytes:
        raise MeasurementError(f"`{path.name}` is longer than {limit_bytes} bytes")
    return body


@contextlib.contextmanager
def _opened(path: Path, *, writing: bool = False) -> Iterator[BinaryIO | None]:
    """Yield the open file, or None if there is none; raise OSError if it is no regular file, or cannot be opened."""
    try:
        file = open_regular(path, links=False, writing=writing)
    except FileNotFoundError:
        yield None
        return
    with file:
        yield file


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a MeasurementError that names the file."""
    try:
        yield
    except OSError as error:
        what = {errno.ELOOP: "has become a link", errno.EINVAL: "is no longer a regular file"}
        raise MeasurementError(f"`{path.name}` {what.get(error.errno or 0, f'cannot be read: {error.strerror}')}") from error
