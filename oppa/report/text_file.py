"""Write a page or another text that a user has named."""

from pathlib import Path

from oppa.atomic_write import write_atomically
from oppa.errors import InputError


def write_text(path: Path, text: str) -> Path:
    """Write a text atomically; returns `path`. Raises InputError if it cannot be written."""
    try:
        write_atomically(path, text.encode(errors="replace"))  # a path may contain bytes that are not text
    except OSError as error:
        raise InputError(
            f"`{path}` cannot be written: {error.strerror}", hint="name a file in an existing folder that you can write to"
        ) from None
    return path
