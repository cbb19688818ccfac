"""Read files that others may have damaged or replaced: only regular files, without waiting, and bounded in memory.

A FIFO in place of a file blocks a reader. A device or a sparse file fills its memory. JSON may be nested too deeply. Each is an error of
the kind that a missing file or broken JSON is.
"""

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

LIMIT_BYTES, MOST_COLUMNS = 1 << 30, 1000
"""Longest file that is read as a whole, unless a caller sets another limit, and fewest columns of a CSV file that is refused."""


def exists(path: Path) -> bool:
    """Return True if there is something at a path; a name that the file system refuses, as one that is too long, is nothing."""
    return os.path.exists(path)  # noqa: PTH110 (that of Path raises OSError)


def is_file(path: Path) -> bool:
    """Return True if there is a regular file at a path, as `exists` does."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return True if there is a folder at a path, as `exists` does."""
    return os.path.isdir(path)  # noqa: PTH112


def open_regular(path: Path, *, links: bool = True, writing: bool = False) -> BinaryIO:
    """Open a file.

    Args:
        links: Follow a link in place of the file.
        writing: Open it for reading and appending.

    Raises:
        OSError: it does not exist, cannot be opened, or is not a regular file.
    """
    flags = os.O_NONBLOCK | os.O_CLOEXEC | (os.O_RDWR | os.O_APPEND if writing else os.O_RDONLY) | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(descriptor, "a+b" if writing else "rb")


def read(path: Path, *, limit_bytes: int = LIMIT_BYTES, links: bool = True) -> bytes:
    """Return the contents of a file; raises OSError as `open_regular` does, and if it has more than `limit_bytes`."""
    with open_regular(path, links=links) as file:
        body = file.read(limit_bytes + 1) if os.fstat(file.fileno()).st_size <= limit_bytes else None
    if body is None or len(body) > limit_bytes:
        raise OSError(errno.EFBIG, f"Longer than {limit_bytes} bytes", str(path))
    return body


def read_csv(source: Path | BinaryIO) -> BinaryIO:
    """Return the contents of a CSV file, or of a stream, for a parser.

    Raises:
        OSError: as `read`, or the stream is too long.
        ValueError: it has too many columns.
    """
    body = read(source) if isinstance(source, Path) else source.read(LIMIT_BYTES + 1)
    if len(body) > LIMIT_BYTES:
        raise OSError(errno.EFBIG, f"Longer than {LIMIT_BYTES} bytes")
    if body.partition(b"\n")[0].count(b",") >= MOST_COLUMNS:
        raise ValueError(f"it has {MOST_COLUMNS} columns or more")
    return io.BytesIO(body)


def read_json(path: Path, *, limit_bytes: int = LIMIT_BYTES, links: bool = True) -> Any:
    """Return the value of a JSON file; raises OSError as `read` does, and ValueError as `parse_json` does."""
    return parse_json(read(path, limit_bytes=limit_bytes, links=links))


def parse_json(text: bytes | str) -> Any:
    """Return a JSON value; raises ValueError if the text is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
