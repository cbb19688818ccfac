"""Keep files from other users: a folder and its files belong to the user, and nobody else can enter or read them."""

import errno
import os
import stat
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError


def private_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter; an existing one must be such a folder, and no link.

    Raises:
        EnvironmentLackingError: if the folder cannot be created.
        InputError: if it is a link or a file, belongs to another user, or can be entered by others.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise EnvironmentLackingError(f"`{folder}` cannot be used: {error.strerror}", hint="choose another folder") from None
    if not stat.S_ISDIR(found.st_mode):
        raise InputError(f"`{folder}` is a link, not a folder", hint="give the folder itself")
    require_own(folder, found)
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise InputError(f"`{folder}` has mode {mode:04o}: others may enter it", hint=f"run `chmod 700 {folder}`, or choose another folder")


def close_to_others(folder: Path) -> None:
    """Create a folder that only its owner can enter, or make an existing one such a folder; raises OSError if that fails."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def open_private(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of the user's own, and return its descriptor; a created file has mode 0600.

    Raises:
        OSError: if the file cannot be opened.
        InputError: if it is not a regular file, or belongs to another user.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)  # a FIFO must not block
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise InputError(f"`{path}` is not a regular file", hint="remove it") from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"`{path}` is not a regular file", hint="remove it")
        require_own(path, found)
    except InputError:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: Path, *, create: bool = False) -> None:
    """Give a file mode 0600, if there is one.

    Args:
        create: True to create the file if it does not exist.

    Raises:
        OSError, InputError: those of `open_private`.
    """
    try:
        descriptor = open_private(path, os.O_RDWR | (os.O_CREAT if create else 0))
    except FileNotFoundError:
        return
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def require_own(path: Path, found: os.stat_result) -> None:
    """Raise InputError unless the user owns what `found` describes, which is at `path`."""
    if found.st_uid != os.getuid():
        raise InputError(f"`{path}` belongs to user {found.st_uid}, not to you", hint="choose a folder of your own")
