"""How a job's ranks find the service: `control.json` in the run's folder, which its owner alone can read."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from oppa.control.client import ControlClient
from oppa.errors import RunError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Hello

FILE = "control.json"


@contextlib.contextmanager
def told(folder: Path, *, address: str, job: str, token: str) -> Iterator[None]:
    """A run's folder says where its service is, while this lasts."""
    path = folder / FILE
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"address": address, "job": job, "token": token}, file)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def client_of(folder: Path, configuration: Configuration, *, total_samples: int | None) -> ControlClient | None:
    """The line of a run to its service; None where it has none.

    Raises:
        RunError: if what its folder says is damaged.
    """
    try:
        values = json.loads((folder / FILE).read_text())
        hello = Hello(job=values["job"], configuration=configuration, total_samples=total_samples)
        return ControlClient(values["address"], values["token"], hello)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{folder / FILE}` is damaged: {error}", hint="remove it: `oppa train --policy` writes it anew") from None
