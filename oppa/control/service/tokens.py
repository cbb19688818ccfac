"""Authenticate jobs and watchers by tokens, all derived from one secret of the service in a file that only its owner can read.

A job's token is the HMAC of its name, so no token reveals another one. A restarted service accepts the same tokens. Users who can read
the file can derive tokens themselves.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from oppa.atomic_write import write_atomically
from oppa.errors import EnvironmentLackingError, InputError
from oppa.private_files import open_private, private_folder

SECRET = "secret"
_BYTES = 32


class Tokens:
    """Derives and checks the tokens of a service."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def of(cls, folder: Path) -> "Tokens":
        """Load the secret of the service in `folder`; create it with mode 0600 if it does not exist.

        Raises:
            EnvironmentLackingError: if the folder cannot be written.
            InputError: if others may enter the folder or read the secret, or it is truncated.
        """
        private_folder(folder)
        path = folder / SECRET
        try:
            with contextlib.suppress(FileExistsError):
                write_atomically(path, secrets.token_bytes(_BYTES), private=True, exclusive=True)
            with os.fdopen(open_private(path), "rb") as file:
                mode, secret = os.fstat(file.fileno()).st_mode & 0o777, file.read(_BYTES + 1)
        except OSError as error:
            raise EnvironmentLackingError(f"`{path}` cannot be used: {error.strerror}", hint="choose another folder") from None
        if mode & 0o077:
            raise InputError(f"`{path}` has mode {mode:04o}: others may read it", hint=f"run `chmod 600 {path}`, or remove it")
        if len(secret) != _BYTES:
            raise InputError(f"`{path}` does not have {_BYTES} bytes", hint="remove it: the service creates a new one")
        return cls(secret)

    def of_job(self, job: str) -> str:
        """Return the token with which a job authenticates itself."""
        return self._derived(f"job:{job}")

    def of_watcher(self) -> str:
        """Return the token that permits reading the data of all jobs, but not sending for any."""
        return self._derived("watch")

    def is_of_job(self, token: str, job: str) -> bool:
        """Return True if a token is that of the job; the comparison takes constant time."""
        return hmac.compare_digest(token.encode(), self.of_job(job).encode())

    def is_of_watcher(self, token: str) -> bool:
        """Return True if a token is the watcher's; the comparison takes constant time."""
        return hmac.compare_digest(token.encode(), self.of_watcher().encode())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).hexdigest()
