"""How a job's ranks find the service: `control.json` in the run's folder, which its owner alone can read."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.durable import write_private
from oppa.errors import RunError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.protocol.messages import Hello

if TYPE_CHECKING:
    from oppa.control.client import ControlClient

FILE = "control.json"


STATE_BYTES, MOVED_BYTES_PER_S, AGREED_S = 12, 1e9, 0.5
"""Of a parameter: weight and two moments; what a rank moves of them; and what it takes to build another layout of nothing."""


def expected_change_s(parameters: int, devices: int) -> float:
    """What a first change of layout may take, before one was measured: on the safe side, so that none comes just before the end."""
    return AGREED_S + STATE_BYTES * parameters / devices / MOVED_BYTES_PER_S


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


def client_of(folder: Path, configuration: Configuration, problem: Problem) -> "ControlClient | None":
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
            total_samples=problem.recipe.samples,
            warmup_samples=problem.recipe.warmup_samples,
            scaling=problem.recipe.scaling,
            reconfiguration_s=expected_change_s(problem.model.parameter_count, configuration.devices),
        )
        return ControlClient(values["address"], values["token"], hello, through=values["through"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{folder / FILE}` is damaged: {error}", hint="remove it: `oppa train --policy` writes it anew") from None
