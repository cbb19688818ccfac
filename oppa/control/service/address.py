"""Name a control service that runs already, as `oppa train --control` does."""

import dataclasses
import os
import re

from oppa.errors import InputError
from oppa.launchers.network import LOOPBACK
from oppa.protocol.messages import NAME

TOKEN = "OPPA_CONTROL_TOKEN"
"""Environment variable with the token of a running control service."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A control service on this machine, and the job name and token with which a run connects to it."""

    job: str
    port: int
    token: str = dataclasses.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "ServiceAddress":
        """Return the service that `JOB@127.0.0.1:PORT` names; raises InputError if it is malformed or the token is missing."""
        match = re.fullmatch(rf"(?P<job>{NAME})@(?:{re.escape(LOOPBACK)}|localhost):(?P<port>[0-9]{{1,5}})", text)
        if match is None:
            hint = f"write `my-job@{LOOPBACK}:8765`, the job's name and the service's address; use an SSH tunnel from another host"
            raise InputError(f"`--control {text}` is not of the form `JOB@{LOOPBACK}:PORT`", hint=hint)
        if not (token := os.environ.get(TOKEN, "").strip()):
            raise InputError(f"`--control {text}` needs a token", hint=f"set {TOKEN}=`oppa control --table T --token {match['job']}`")
        return cls(match["job"], int(match["port"]), token)
