"""Advertise the control service to the ranks of a job, in `control.json` in the run's folder; only its owner can read it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.atomic_write import write_atomically
from oppa.errors import RunError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.protocol.messages import Hello, Reach
from oppa.regular_file import read_json

if TYPE_CHECKING:
    from oppa.control.service.client import ControlClient

FILE = "control.json"


STATE_BYTES, MOVED_BYTES_PER_S, AGREED_S = 12, 1e9, 0.5
"""Bytes of a parameter's weight and two moments; bytes per second that a rank moves; and seconds of a change that moves no data."""


def expected_change_s(parameters: int, devices: int) -> float:
    """Return a conservative estimate of the seconds of the first change of layout.

    It applies until a change has been measured, and prevents a change shortly before the end.
    """
    return AGREED_S + STATE_BYTES * parameters / devices / MOVED_BYTES_PER_S


@contextlib.contextmanager
def advertise(folder: Path, *, address: str, through: str, job: str, token: str, run: str = "") -> Iterator[None]:
    """Write `control.json` into a run's folder for the duration of a `with` block.

    Args:
        folder: The run's folder.
        address: Address of the service.
        through: Address from which rank 0 reaches it, such as the local end of a tunnel.
        job: Name of the job.
        token: Token of the job.
        run: UUID of the run.
    """
    path = folder / FILE
    values = {"address": address, "through": through, "job": job, "token": token, "run": run}
    write_atomically(path, json.dumps(values).encode(), private=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def connect(
    folder: Path, configuration: Configuration, problem: Problem, *, reconfiguration_s: float | None = None, reach: Reach | None = None
) -> "ControlClient | None":
    """Return a client for the service that a run's folder names; None if it names none.

    Args:
        reconfiguration_s: Expected seconds of the first change of layout; None: those of a change in process.
        reach: Changes that are open to the job; None: all.

    Raises:
        RunError: if `control.json` is damaged.
    """
    from oppa.control.service.client import ControlClient

    try:
        values = read_json(folder / FILE)
        if reconfiguration_s is None:
            reconfiguration_s = expected_change_s(problem.model.parameter_count, configuration.devices)
        hello = Hello(
            job=values["job"],
            configuration=configuration,
            total_samples=problem.run_options.samples,
            warmup_samples=problem.run_options.warmup_samples,
            scaling=problem.run_options.scaling,
            reconfiguration_s=reconfiguration_s,
            reach=reach or Reach(),
        )
        return ControlClient(values["address"], values["token"], hello, through=values["through"], run=values.get("run", ""))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"`{folder / FILE}` is damaged: {error}", hint="remove it: `oppa train --policy` writes a new one") from None
