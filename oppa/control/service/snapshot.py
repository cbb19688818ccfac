"""Store the state of a job, so that a start replays only the messages after it.

A snapshot is a cache, which a digest seals. If the seal, the policy, the table or the version of oppa do not match, the whole journal is
replayed.
"""

import dataclasses
import hashlib
import json
from typing import Any, Self

from oppa.control.service.job import ControlledJob

VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Holds the state of a job after one of its messages."""

    job: str
    number: int
    """Number of the last message that the state includes."""
    state: str
    """The state as JSON."""
    digest: str
    """SHA-256 of all the above, and of what decisions depend on (`ControllerFactory.basis`).

    The hello is no part of it: a job continues from its state under another hello, too (`ControlledJob.begin`).
    """

    @classmethod
    def of(cls, job: ControlledJob, basis: str) -> Self:
        """Return the present state of a job, sealed."""
        state = json.dumps(job.snapshot(), separators=(",", ":"))
        return cls(job=job.name, number=job.number, state=state, digest=_digest(basis, job.name, job.number, state))

    def verified(self, basis: str) -> dict[str, Any] | None:
        """Return the state; None if the seal does not match."""
        if self.digest != _digest(basis, self.job, self.number, self.state):
            return None
        state: dict[str, Any] = json.loads(self.state)
        return state


def _digest(basis: str, job: str, number: int, state: str) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, basis, job, number]).encode())
    digest.update(state.encode())
    return digest.hexdigest()
