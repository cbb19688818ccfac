"""Name a control service that runs already, as `oppa train --control` does."""

import contextlib
import dataclasses
import http
import logging
import os
import re
from collections.abc import Iterator

from oppa.errors import InputError, RunError, reason
from oppa.launchers.network import LOOPBACK
from oppa.protocol.messages import NAME

TOKEN = "OPPA_CONTROL_TOKEN"
"""Environment variable with the token of a running control service."""
RUN = "Oppa-Run"
"""Header with the UUID of the run that a connection belongs to; a service that does not support it ignores it."""
TAKEN = 1008
"""Code with which the service closes the connection of a run that holds a name of another run."""
MOST_PORT = 65_535
_ANSWER_S = 10.0
"""Timeout in seconds for the service to answer a request."""

_log = logging.getLogger(__name__)


def in_use(job: str) -> str:
    """Return the words for a job name under which another run is connected."""
    return f"another run is connected to the control service as `{job}`"


def no_entry(job: str) -> str:
    """Return the words for a token that the service refuses."""
    return f"the control service refuses the token of `{job}`: this run trains without decisions"


def _token_command(job: str) -> str:
    """Return the command that prints a job's token, on the machine of the service."""
    return f"oppa control --table T --folder FOLDER --token {job}"


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Names a control service on this machine, and the job name and token with which a run connects to it."""

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
        if not 1 <= (port := int(match["port"])) <= MOST_PORT:
            raise InputError(f"`--control {text}`: there is no port {port}", hint=f"use the service's port, at most {MOST_PORT}")
        if not (token := os.environ.get(TOKEN, "").strip()):
            raise InputError(f"`--control {text}` needs a token", hint=f"set {TOKEN}=`{_token_command(match['job'])}`")
        return cls(match["job"], port, token)

    @contextlib.contextmanager
    def held(self, run: str) -> Iterator[None]:
        """Hold the job's name for a run inside the context, also before its ranks connect; warn if the service does not answer.

        Args:
            run: UUID of the run.

        Raises:
            RunError: if another run holds the name, or is connected under it.
        """
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        url, headers = f"ws://{LOOPBACK}:{self.port}/job/{self.job}/hold", {"Authorization": f"Bearer {self.token}", RUN: run}
        with contextlib.ExitStack() as opened:
            try:
                line = opened.enter_context(connect(url, additional_headers=headers, open_timeout=_ANSWER_S, close_timeout=1.0, proxy=None))
                line.recv(timeout=_ANSWER_S)
            except InvalidStatus as error:  # an older service lacks the path, and training goes on without one that refuses
                if error.response.status_code == http.HTTPStatus.CONFLICT:
                    raise self._taken() from None
                if error.response.status_code == http.HTTPStatus.UNAUTHORIZED:
                    _log.warning("%s; set %s to the output of `%s`", no_entry(self.job), TOKEN, _token_command(self.job))
            except ConnectionClosed as error:
                if error.rcvd is not None and error.rcvd.code == TAKEN:
                    raise self._taken() from None
            except (OSError, WebSocketException) as error:
                away = "no control service answers at %s:%d (%s): until it does, nothing changes"
                _log.warning(away, LOOPBACK, self.port, reason(error))
            yield

    def _taken(self) -> RunError:
        hint = f"name another job, such as `--control {self.job}-2@{LOOPBACK}:{self.port}` with its own token, or end the other run"
        return RunError(in_use(self.job), hint=hint)
