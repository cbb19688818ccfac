"""Write files so that they are on disk before anything depends on them."""

import os
from pathlib import Path


def write_private(path: Path, body: bytes) -> None:
    """Write a new file, and wait until it is on disk; an existing one is replaced.

    Only its owner can read it, from the moment of its creation.
    """
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
