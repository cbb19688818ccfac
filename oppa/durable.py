"""What is written is on disk before anything builds on it."""

import os
from pathlib import Path


def write_private(path: Path, body: bytes) -> None:
    """A new file that its owner alone can read, from its first moment on, and on disk; one that is there already is replaced."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
