"""Write files so that they are whole or absent, and on disk before anything depends on them."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, body: bytes, *, private: bool = False, exclusive: bool = False, durable: bool = True) -> None:
    """Write a file as a whole: readers find the earlier file or this one.

    Args:
        path: File to create or to replace.
        body: Its contents.
        private: Only the owner can read the file, from the moment of its creation.
        exclusive: An existing file stays, and is an error.
        durable: Wait until the file and its name are on disk.

    Raises:
        FileExistsError: the write is `exclusive`, and there is a file.
        OSError: the file cannot be written; an existing one stays.
    """
    with draft_beside(path, exclusive=exclusive, durable=durable) as draft:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(number, "wb") as file:
            file.write(body)


@contextlib.contextmanager
def draft_beside(path: Path, *, exclusive: bool = False, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a draft, for writers that take a path; the draft takes its final name at the end of the `with` block.

    If the block fails, the draft is deleted. Arguments and errors are those of `write_atomically`.
    """
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}.draft"  # threads share a process id, and so may containers
    try:
        yield draft
        if durable:
            sync(draft)
        if exclusive:
            os.link(draft, path)
        else:
            draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
