"""Write a page or another file that a user has named."""

import errno
import os
from pathlib import Path

from oppa.atomic_write import write_atomically
from oppa.errors import InputError
from oppa.regular_file import exists, is_file


def write_text(path: Path, text: str) -> Path:
    """Write a text atomically; returns `path`. Raises InputError if it cannot be written."""
    return write_bytes(path, text.encode(errors="replace"))  # a path may contain bytes that are not text


def write_bytes(path: Path, content: bytes, *, exclusive: bool = False) -> Path:
    """Write a file atomically; returns `path`.

    Raises:
        InputError: it cannot be written, or something else has its name.
        FileExistsError: `exclusive`, and the file exists.
    """
    _require_file(path)
    try:
        write_atomically(path, content, exclusive=exclusive)
    except FileExistsError:
        raise
    except OSError as error:
        raise _unwritable(path, error.errno) from None
    return path


def require_writable(path: Path) -> None:
    """Raise InputError if a file cannot be written, before its content is computed."""
    _require_file(path)
    if not path.parent.is_dir():
        raise _unwritable(path, errno.ENOTDIR if exists(path.parent) else errno.ENOENT)
    if not os.access(path.parent, os.W_OK):
        raise _unwritable(path, errno.EACCES)


def _require_file(path: Path) -> None:
    if exists(path) and not is_file(path):  # a device, such as /dev/stdout, would be replaced
        raise InputError(f"`{path}` cannot be written: it is not a file", hint="name a file in an existing folder")


def _unwritable(path: Path, code: int | None) -> InputError:
    why = os.strerror(code) if code else "unknown error"
    return InputError(f"`{path}` cannot be written: {why}", hint="name a file in an existing folder that you can write to")
