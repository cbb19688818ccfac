"""A full disk, as the kernel makes one for files of this process alone."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full(size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse all bytes of files beyond a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
