"""How a job's ranks find the service: `control.json` in the run's folder, which its owner alone can read."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.durable import write_private
from oppa.errors import RunError
from oppa.problem.configuration import Configuration
from oppa.problem.training import Recipe
from oppa.protocol.messages import Hello

if TYPE_CHECKING:
    from oppa.control.client import ControlClient

FILE = "control.json"


@contextlib.contextmanager
def told(folder: Path, *, address: str, through: str, job: str, token: str) -> Iterator[None]:
    """A run's folder says where its service is, and through what rank 0 reaches it, while this lasts."""
    path = folder / FILE
    draft = path.with_suffix(".draft")
    write_private(draft, json.dumps({"address": address, "through": through, "job": job, "token": token}).encode())
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def client_of(folder: Path, configuration: Configuration, recipe: Recipe) -> "ControlClient | None":
    """The line of a run to its service; None where it has none.

    Raises:
        RunError: if what its folder says is damaged.
    """
    from oppa.control.client import ControlClient

    try:
        values = json.loads((folder / FILE).read_text())
        hello = Hello(
            job=values["job"],
            configuration=configuration,
            total_samples=recipe.samples,
            warmup_samples=recipe.warmup_samples,
            scaling=recipe.scaling,
        )
        return ControlClient(values["address"], values["token"], hello, through=values["through"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{folder / FILE}` is damaged: {error}", hint="remove it: `oppa train --policy` writes it anew") from None
