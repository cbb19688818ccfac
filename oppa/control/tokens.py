"""Who may speak for a job: whoever has its token. All tokens of a service follow from one secret, a file that its owner alone can read.

A job's token is the HMAC of its name, so none of them tells another one; a service that starts again knows them all, and whoever may read
the file can make one without asking.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from oppa.durable import sync, write_private
from oppa.errors import EnvironmentLackingError, InputError

SECRET = "secret"
_BYTES = 32


class Tokens:
    """Those of a service."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def of(cls, folder: Path) -> "Tokens":
        """Of the service in this folder; its secret is made where there is none, mode 0600.

        Raises:
            EnvironmentLackingError: if the folder cannot be written.
            InputError: if others may read the secret, or it is cut short.
        """
        path = folder / SECRET
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                _make(path)
            mode, secret = path.stat().st_mode & 0o777, path.read_bytes()
        except OSError as error:
            raise EnvironmentLackingError(f"`{path}` cannot be used: {error.strerror}", hint="name another folder") from None
        if mode & 0o077:
            raise InputError(f"`{path}` has mode {mode:04o}: others may read it", hint=f"chmod 600 {path}, or remove it for a new one")
        if len(secret) != _BYTES:
            raise InputError(f"`{path}` has {len(secret)} bytes instead of {_BYTES}", hint="remove it: a new one is made")
        return cls(secret)

    def of_job(self, job: str) -> str:
        """To speak for a job."""
        return self._derived(f"job:{job}")

    def of_watcher(self) -> str:
        """To see all jobs, and speak for none."""
        return self._derived("watch")

    def is_of_job(self, token: str, job: str) -> bool:
        """Whether it is; in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(token.encode(), self.of_job(job).encode())

    def is_of_watcher(self, token: str) -> bool:
        """Whether it is; in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(token.encode(), self.of_watcher().encode())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).hexdigest()


def _make(path: Path) -> None:
    """A new secret, whole from the moment on at which it can be seen."""
    draft = path.with_name(f".{SECRET}.{os.getpid()}")
    write_private(draft, secrets.token_bytes(_BYTES))
    try:
        os.link(draft, path)  # fails where another process was first
    finally:
        draft.unlink()
    sync(path.parent)
